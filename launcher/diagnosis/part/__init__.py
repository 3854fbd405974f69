"""The agents' part in finding which rank a job waits for: each looks at its own workers, the leader concludes.

`progress_part` watches whether the workers of this node make progress; `inquiries` is the part that has questions
answered, by launcher/views/questions, and acts on what is concluded; `examination` has what starts a look, what this
node sees and who is told, `collection`, pure, what the leader makes of all of it.

Both are imported when something has happened. They ask for effects, and touch neither workers nor agreement.
"""
