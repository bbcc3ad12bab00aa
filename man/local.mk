# Hand-written roff, one page a program or topic.
