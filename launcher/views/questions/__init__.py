"""A question about the run, on its way from who asks to the nodes that answer, and back.

    who asks   local_socket: this user's processes; run_source, kept_answer: many readers, one question
    the agent  local_listener, question_socket: its end of the socket; reporter: threads that make answers
    all nodes  survey: who was asked, who has answered; messages: the notes between agents
    together   run_answer: one view of the run from the answers of its nodes

What a node answers is not decided here: `launcher/diagnosis/part/inquiries.py` is the part that has the questions
answered, `launcher/views/node` has the answers. Each question has a limit, and ends by then with what has come.
"""
