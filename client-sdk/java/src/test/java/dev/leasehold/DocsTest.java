package dev.leasehold;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.leasehold.examples.NightlyReconcile;
import dev.leasehold.support.Broker;
import dev.leasehold.testing.FakeBroker;
import java.io.StringWriter;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import javax.tools.JavaCompiler;
import javax.tools.JavaFileObject;
import javax.tools.SimpleJavaFileObject;
import javax.tools.ToolProvider;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Tests that the examples of the documentation compile and run. */
class DocsTest {
    private static final Pattern BLOCK = Pattern.compile("```java\n(.*?)```", Pattern.DOTALL);
    /** A call in the README's table of operations. */
    private static final Pattern CELL = Pattern.compile("^\\|[^|`]*\\| `(.*?)` *\\|$", Pattern.MULTILINE);

    @TempDir
    private Path classes;

    private static String readme() throws Exception {
        return Files.readString(Path.of("README.md"));
    }

    private void compile(List<String> statements) {
        StringBuilder source = new StringBuilder("import dev.leasehold.*; import dev.leasehold.error.*;\n")
                .append("import dev.leasehold.testing.FakeBroker; import java.time.Duration; import java.util.*;\n")
                .append("import java.util.concurrent.*; import static java.time.Duration.ofSeconds;\n")
                .append("abstract class Examples {\n List<String> rows; Thread worker;\n")
                .append(" abstract void write(String row, long fencingToken); abstract void stop();\n");
        for (int number = 0; number < statements.size(); number++) {
            source.append(" void example").append(number);
            source.append("(LeaseholdClient client, Lease lease) throws Exception {{\n");
            source.append(statements.get(number).replace("LeaseholdClient client =", "client ="));
            source.append("\n}}\n");
        }
        source.append("}\n");
        JavaFileObject file =
                new SimpleJavaFileObject(URI.create("string:///Examples.java"), JavaFileObject.Kind.SOURCE) {
                    @Override
                    public CharSequence getCharContent(boolean ignoreEncodingErrors) {
                        return source;
                    }
                };
        JavaCompiler compiler = ToolProvider.getSystemJavaCompiler();
        StringWriter output = new StringWriter();
        List<String> options =
                List.of("-d", classes.toString(), "-cp", System.getProperty("java.class.path"), "-proc:none");
        boolean isCompiled = compiler.getTask(output, null, null, options, null, List.of(file))
                .call();
        assertTrue(isCompiled, output + "\n" + source);
    }

    @Test
    void theReadmesCodeCompiles() throws Exception {
        List<String> statements = new ArrayList<>();
        for (Matcher matcher = BLOCK.matcher(readme()); matcher.find(); ) {
            statements.add(matcher.group(1)
                    .replaceAll("(?m)^import .*;$", "")
                    .replace("Lease lease = client.acquire(\"orders/42\");", "lease = client.acquire(\"orders/42\");"));
        }
        assertTrue(statements.size() >= 3, "too few code blocks found");
        compile(statements);
    }

    @Test
    void theReadmesTableCompiles() throws Exception {
        List<String> statements = new ArrayList<>();
        for (Matcher matcher = CELL.matcher(readme()); matcher.find(); ) {
            String call = matcher.group(1);
            statements.add(call.endsWith(";") ? call : call + ";");
        }
        assertTrue(statements.size() >= 12, "too few table rows found: " + statements);
        compile(statements);
    }

    @Test
    void theExampleRuns() throws Exception {
        try (Broker broker = Broker.start()) {
            NightlyReconcile.main(new String[] {broker.url()});
        }
        try (FakeBroker broker = new FakeBroker();
                LeaseholdClient client = broker.client("one")) {
            assertEquals("done: 2 orders", NightlyReconcile.reconcile(client, List.of("1", "2")));
            assertEquals(0, broker.holderCount("orders/reconcile"));
        }
    }
}
