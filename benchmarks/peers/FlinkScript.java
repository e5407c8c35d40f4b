import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.GlobalConfiguration;
import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.TableEnvironment;

/**
 * Runs the SQL statements of a file on Flink, each to its end: {@code FlinkScript CONFIGURATION_DIRECTORY FILE}.
 *
 * <p>Flink's own SQL client asks its gateway again and again while a job runs, which would count as Flink's CPU.
 */
public final class FlinkScript {
    private FlinkScript() {}

    public static void main(String[] arguments) throws Exception {
        Configuration configuration = GlobalConfiguration.loadConfiguration(arguments[0]);
        TableEnvironment tables =
                TableEnvironment.create(
                        EnvironmentSettings.newInstance()
                                .inStreamingMode()
                                .withConfiguration(configuration)
                                .build());
        for (String statement : Files.readString(Path.of(arguments[1])).split(";\\s*(\\n|$)")) {
            if (!statement.isBlank()) {
                tables.executeSql(statement).await();
            }
        }
        // Threads of Flink that are no daemons must not keep the process.
        System.exit(0);
    }
}
