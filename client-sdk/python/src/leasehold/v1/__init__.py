"""Generated from the files in proto/leasehold/v1 by generate.sh; not to be changed by hand."""
