"""The job `replay`: decodes a range of `bronze` again, in the place of what came of it before."""
