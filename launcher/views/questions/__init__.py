"""A question about the run, on its way from who asks to the nodes that answer, and back.

    who asks   local_socket: this user's processes; kept_answer: many readers, one question
    the agent  question_server: answers, by any way; local_listener, question_socket: its end of the socket;
               reporter: threads that make answers
    all nodes  survey: who was asked, who has answered; messages: the notes between agents
    together   make_run_view of run_view: one view of the run from the answers of its nodes

`launcher/views/node` has what a node says of itself; launcher/diagnosis registers for its questions, and its part has
the server work. Each question has a limit, and ends by then with what has come.
"""
