"""What only controllers of Kubernetes read or provide: jobs of pods, the status of a TrainJob, requests for nodes.

    controllers      what a controller sets in its pods, and the job that it makes of them
    trainer_status   --progress kubeflow: the training as Kubeflow Trainer shows it
    node_requester   --request-nodes: a command that is told how many nodes the run wants and has

The last two tell somebody else what happens in the run, in threads of their own. Neither may hold up the job, fail it,
or change how many nodes it has. The labels of a node are read elsewhere: launcher/locality/kubernetes.py.
"""
