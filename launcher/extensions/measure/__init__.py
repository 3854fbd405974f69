"""Finds the tree of a network that tells nothing of itself, and the rates of its links, by loading it for seconds.

On most networks that jobs rent, no source says which nodes share a switch, and the round trip of a packet says nothing
either: it takes 0.1 ms to every node while the network is idle. A packet that crosses a full uplink waits in its queue,
though, for 10 to 30 ms. So all nodes send bulk data to one another, each to one, and ask all others for small echoes
meanwhile. Those that answer fast stand below the same switch.

    schedule   who sends to whom in a round, who asks whom      } pure: a model of a network
    grouping   echoes to groups of nodes that are near          } takes the part of the nodes
    rates      what arrived to rates of hosts and uplinks       } in tests
    procedure  rounds, one step after the other, to a finding   }
    wording    the finding in sentences, and as a file of places  }
    udp_echo, tcp_load, player    the sockets of one node, and a round on it
    session    all nodes through a store: the first to come coordinates
    measurement, command    `meshctl measure` on one node, and its command line

It loads the network, so it runs by that command alone, never as part of a job, and refuses beside one. What it finds is
a file for `--locality @FILE`.
"""
