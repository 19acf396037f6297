"""The half of the virtual GPU that understands PTX; the other half is the C in ../../driver."""
