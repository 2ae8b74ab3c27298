"""What an earlier audit found in order, so that the next one need not read it again: `files`, the files on
which that rests and what became of them since; `past`, what they come to, kept in the table `settled`."""
