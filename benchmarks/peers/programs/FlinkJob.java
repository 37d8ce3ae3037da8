import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.TableEnvironment;

/** Runs the statements of a file of Flink SQL in this JVM and waits for the job that they start. */
public class FlinkJob {
  public static void main(String[] arguments) throws Exception {
    TableEnvironment environment = TableEnvironment.create(EnvironmentSettings.newInstance().build());
    for (String statement : Files.readString(Path.of(arguments[0])).split(";\\s*\n")) {
      if (statement.startsWith("SET ")) { // a command of Flink's SQL client: SET 'option' = 'value'
        String[] parts = statement.split("'");
        environment.getConfig().set(parts[1], parts[3]);
      } else if (!statement.isBlank()) {
        environment.executeSql(statement).await();
      }
    }
  }
}
