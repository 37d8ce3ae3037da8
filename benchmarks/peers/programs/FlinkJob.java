import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.flink.configuration.GlobalConfiguration;
import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.TableEnvironment;

/** Runs job.sql of a folder with the settings of its config.yaml, in this JVM, until it ends. */
public class FlinkJob {
  public static void main(String[] arguments) throws Exception {
    var settings = GlobalConfiguration.loadConfiguration(arguments[0]);
    var environment =
        TableEnvironment.create(
            EnvironmentSettings.newInstance().withConfiguration(settings).build());
    for (String statement : Files.readString(Path.of(arguments[0], "job.sql")).split(";\n")) {
      environment.executeSql(statement).await();
    }
  }
}
