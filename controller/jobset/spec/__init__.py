"""Convert objects of the API to JobSets and Jobs: parsing, defaults, validation. Pure."""
