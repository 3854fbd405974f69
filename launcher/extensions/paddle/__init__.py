"""PaddlePaddle: the variables of its workers, by --framework paddle, or where Python finds Paddle and neither other.

`environment` is all there is. It may add variables to those that every worker gets, or change them, and refuse what
Paddle cannot do; it decides no rank, port or device, and imports no Paddle: launcher/config/frameworks.py finds out
whether it is installed.
"""
