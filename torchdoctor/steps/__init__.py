"""What a step of a program is: one rule, which takes the program's events one by one.

In: events, as they happen in the user's process or as its log holds them. Out: what separates two
steps, from which event on, or that this is not decided yet. Standard library only, loaded by path
into the user's process too.

May import: no other room.
"""
