"""What carries out the actions of the machine: threads for requests and watches, and what people are told of them."""
