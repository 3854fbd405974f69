"""What only controllers of Kubernetes read or provide: the status of a TrainJob, and nodes that are asked for.

    trainer_status   --progress kubeflow: the training as Kubeflow Trainer shows it
    node_requester   --request-nodes: a command that is told how many nodes the run wants and has

Both tell somebody else what happens in the run, in threads of their own. Neither may hold up the job, fail it, or
change how many nodes it has. The kernel's part of Kubernetes is elsewhere: launcher/locality/kubernetes.py reads the
labels of a node, launcher/config/schedulers.py what a controller sets in its pods.
"""
