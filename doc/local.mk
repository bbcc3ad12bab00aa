# Documents that bind the code, and programs to learn from.
dist_doc_DATA = \
	LICENSE \
	README.md \
	doc/adding-a-format.md \
	doc/checkpoint-format.md \
	doc/model.md \
	doc/numerics.md \
	doc/volume.md
# End of dist_doc_DATA

dist_example_DATA += doc/examples/fit.c
