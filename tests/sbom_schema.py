"""Check the list of the image's content against its schema."""


def problem(document: str) -> object | None:
    """Return why a document is no CycloneDX 1.6, or None.

    The validator is imported here: it compiles dozens of grammars, and each worker process imports all test modules.
    """
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    return JsonStrictValidator(SchemaVersion.V1_6).validate_str(document)
