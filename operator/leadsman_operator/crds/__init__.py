"""The custom resources, defined once: these classes parse the objects and make the CRDs' YAML."""
