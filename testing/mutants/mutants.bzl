"""Mutants: one deliberate defect each, in a copy of a source file, linked with the tests that must notice."""

def mutants(name, cases, table):
    """Defines a test that fails unless every mutant fails its tests and the unchanged source passes them.

    Args:
      name: of the test.
      cases: test suites by name: a library with the cases (alwayslink), with the filter of those that are run.
      table: by mutant: [suite, file's label, text to replace (exactly once), text instead].
    """
    binaries = []
    arguments = []
    for suite, (library, filter) in cases.items():
        control = "%s_%s" % (name, suite)
        native.cc_binary(
            name = control,
            testonly = True,
            linkstatic = True,
            deps = [library, "@googletest//:gtest_main"],
        )
        binaries.append(control)
        arguments.append("pass,%s,$(location :%s),'%s'" % (suite, control, filter))
    for mutant, (suite, file, old, new) in table.items():
        target = "%s_%s" % (name, mutant)
        source = "mutated/%s/%s" % (mutant, file.split(":")[1])
        old_file, new_file = target + ".old", target + ".new"
        native.genrule(
            name = target + "_source",
            srcs = [file],
            outs = [source],
            cmd = "cat > $(RULEDIR)/%s <<'END_OF_TEXT'\n%s\nEND_OF_TEXT\ncat > $(RULEDIR)/%s <<'END_OF_TEXT'\n%s\nEND_OF_TEXT\n" % (old_file, old, new_file, new) +
                  "$(location :mutate) $(location %s) $(RULEDIR)/%s $(RULEDIR)/%s $@" % (file, old_file, new_file),
            tools = [":mutate"],
            testonly = True,
        )

        # Its objects come first; the archive member with the same symbols is then not linked.
        native.cc_binary(
            name = target,
            testonly = True,
            srcs = [source],
            linkstatic = True,
            deps = [cases[suite][0], "@googletest//:gtest_main"],
        )
        binaries.append(target)
        arguments.append("fail,%s,$(location :%s),'%s'" % (mutant, target, cases[suite][1]))
    native.sh_test(
        name = name,
        size = "medium",
        srcs = ["run.sh"],
        args = arguments,
        data = [":" + binary for binary in binaries],
        tags = ["suite:offload"],
    )
