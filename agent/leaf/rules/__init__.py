"""Rules at the edge: between the inputs and the core, where the configuration has `[[rule]]`.

Which readings a rule is for is decided by input, metric and device alone, all of which rules leave as they
are; so readings of one series always share their class. The rules of a reading apply in the order in which
they stand: a later class, tag or deadband replaces an earlier one, `drop` ends it.
"""
