import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.Json;
import java.io.BufferedWriter;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.List;
import java.util.Properties;

/** Debezium's embedded engine: each of its batches becomes a file of JSON, an event a line. */
public class DebeziumFiles implements DebeziumEngine.ChangeConsumer<ChangeEvent<String, String>> {
  private final Path folder;
  private long number = System.currentTimeMillis() * 1000; // names go up across restarts

  private DebeziumFiles(Path folder) {
    this.folder = folder;
  }

  /** Arguments: a file of Debezium's properties, and the folder for the events. */
  public static void main(String[] arguments) throws Exception {
    Properties properties = new Properties();
    try (var reader = Files.newBufferedReader(Path.of(arguments[0]))) {
      properties.load(reader);
    }
    DebeziumEngine.create(Json.class)
        .using(properties)
        .notifying(new DebeziumFiles(Path.of(arguments[1])))
        .using((success, message, error) -> System.err.println(message))
        .build()
        .run();
  }

  @Override
  public void handleBatch(
      List<ChangeEvent<String, String>> events,
      DebeziumEngine.RecordCommitter<ChangeEvent<String, String>> committer)
      throws InterruptedException {
    String name = number++ + ".json";
    Path hidden = folder.resolve("." + name);
    try {
      try (BufferedWriter writer = Files.newBufferedWriter(hidden)) {
        for (var event : events) {
          writer.write(event.value());
          writer.write('\n');
        }
      }
      Files.move(hidden, folder.resolve(name), StandardCopyOption.ATOMIC_MOVE);
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
    for (var event : events) {
      committer.markProcessed(event);
    }
    committer.markBatchFinished();
  }
}
