package tidelog.iceberg;

import java.io.IOException;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.iceberg.CatalogUtil;
import org.apache.iceberg.ContentFileParser;
import org.apache.iceberg.DataFile;
import org.apache.iceberg.DeleteFile;
import org.apache.iceberg.Files;
import org.apache.iceberg.RewriteFiles;
import org.apache.iceberg.RowDelta;
import org.apache.iceberg.Snapshot;
import org.apache.iceberg.SnapshotChanges;
import org.apache.iceberg.SnapshotRef;
import org.apache.iceberg.SortOrderParser;
import org.apache.iceberg.Table;
import org.apache.iceberg.TableMetadata;
import org.apache.iceberg.TableOperations;
import org.apache.iceberg.catalog.Catalog;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.exceptions.ValidationException;
import org.apache.iceberg.hadoop.HadoopFileIO;
import org.apache.iceberg.io.InputFile;
import org.apache.iceberg.io.OutputFile;
import org.apache.iceberg.util.JsonUtil;

/**
 * What would be many calls from Python, each for one value or file of a commit.
 *
 * <p>Spark compiles it (Janino, its compiler of generated code), which knows no generics and no
 * lambdas. Jackson's classes are not named: Iceberg's jar for Spark has them under other names.
 */
public final class CommitCalls {
  /** A catalog; one of local files reads and writes them by {@link LocalFiles}. */
  public Catalog open(String name, Map properties, Configuration conf) throws IOException {
    Map given = new LinkedHashMap(properties);
    String warehouse = String.valueOf(given.get("warehouse"));
    if ("hadoop".equals(given.get("type"))
        && warehouse.startsWith("/")
        && "file".equals(new Path(warehouse).getFileSystem(conf).getUri().getScheme())
        && !given.containsKey("io-impl")) {
      given.put("io-impl", "tidelog.iceberg.LocalFiles");
      conf.setClassLoader(CommitCalls.class.getClassLoader());
      conf.set("fs.file.impl", "tidelog.iceberg.PlainFileSystem");
      conf.setBoolean("fs.file.impl.disable.cache", true); // Spark has Hadoop's own there
    }
    Thread thread = Thread.currentThread();
    ClassLoader before = thread.getContextClassLoader();
    thread.setContextClassLoader(CommitCalls.class.getClassLoader());
    try {
      return CatalogUtil.buildIcebergCatalog(name, given, conf);
    } finally {
      thread.setContextClassLoader(before);
    }
  }

  /** A table. */
  public Table load(Catalog catalog, TableIdentifier name) {
    try {
      return catalog.loadTable(name);
    } catch (IllegalArgumentException unknown) {
      throw unreadable(unknown);
    }
  }

  /** The newest metadata of a table. */
  public TableMetadata refresh(TableOperations table) {
    try {
      return table.refresh();
    } catch (IllegalArgumentException unknown) {
      throw unreadable(unknown);
    }
  }

  /**
   * Of metadata that the library can't parse, since PySpark hides the class of the cause; else the
   * same, as of a name node whose host is unknown.
   */
  private static RuntimeException unreadable(IllegalArgumentException cause) {
    for (StackTraceElement at : cause.getStackTrace()) {
      if ("fromJson".equals(at.getMethodName())) {
        return new ValidationException(cause, "unknown metadata", new Object[0]);
      }
    }
    return cause;
  }

  /** The parts of a table's metadata that a batch needs, as JSON. */
  public String describe(TableMetadata base) throws IOException {
    Map found = new LinkedHashMap();
    SnapshotRef main = base.ref(SnapshotRef.MAIN_BRANCH);
    found.put("uuid", base.uuid());
    found.put("location", base.location());
    found.put("format", Integer.valueOf(base.formatVersion()));
    found.put("schema", Integer.valueOf(base.currentSchemaId()));
    found.put("spec", Integer.valueOf(base.defaultSpecId()));
    found.put("order", SortOrderParser.toJson(base.sortOrder()));
    Snapshot head = main == null ? null : base.snapshot(main.snapshotId());
    found.put("head", head == null ? null : Long.valueOf(head.snapshotId()));
    found.put("sequence", head == null ? null : Long.valueOf(head.sequenceNumber()));
    found.put("summary", head == null ? null : head.summary());
    found.put("branches", new ArrayList(base.refs().keySet()));
    found.put("properties", base.properties());
    found.put("encrypted", Boolean.valueOf(!base.encryptionKeys().isEmpty()));
    return JsonUtil.mapper().writeValueAsString(found);
  }

  /** Of each data file that a snapshot added the id of its first row and its sequence number. */
  public String lineage(Table table, Snapshot snapshot) throws IOException {
    Map found = new LinkedHashMap();
    Iterable added =
        SnapshotChanges.builderFor(table).snapshot(snapshot).build().addedDataFiles();
    for (Object each : added) {
      DataFile file = (DataFile) each;
      List numbers = new ArrayList();
      numbers.add(file.firstRowId());
      numbers.add(Long.valueOf(snapshot.sequenceNumber()));
      found.put(file.location(), numbers);
    }
    return JsonUtil.mapper().writeValueAsString(found);
  }

  /** Adds and removes files: four lists of their JSON. */
  public void change(RowDelta operation, String files, Map specs) throws IOException {
    List[] parts = parsed(files, specs);
    for (Object each : parts[0]) operation.addRows((DataFile) each);
    for (Object each : parts[1]) operation.removeRows((DataFile) each);
    for (Object each : parts[2]) operation.addDeletes((DeleteFile) each);
    for (Object each : parts[3]) operation.removeDeletes((DeleteFile) each);
  }

  /** The same where the rows stay as they are. */
  public void change(RewriteFiles operation, String files, Map specs) throws IOException {
    List[] parts = parsed(files, specs);
    for (Object each : parts[0]) operation.addFile((DataFile) each);
    for (Object each : parts[1]) operation.deleteFile((DataFile) each);
    for (Object each : parts[2]) operation.addFile((DeleteFile) each);
    for (Object each : parts[3]) operation.deleteFile((DeleteFile) each);
  }

  private static List[] parsed(String files, Map specs) throws IOException {
    List texts = (List) JsonUtil.mapper().readValue(files, List.class);
    List[] parts = new List[texts.size()];
    for (int at = 0; at < parts.length; at++) {
      parts[at] = new ArrayList();
      for (Object text : (List) texts.get(at)) {
        parts[at].add(ContentFileParser.fromJson(JsonUtil.mapper().readTree((String) text), specs));
      }
    }
    return parts;
  }

  /** The metadata with a new snapshot, these properties, as JSON, and without these branches. */
  public TableMetadata withSnapshot(
      TableMetadata base, Snapshot snapshot, String properties, String retired) throws IOException {
    TableMetadata.Builder builder = TableMetadata.buildFrom(base);
    builder.setBranchSnapshot(snapshot, SnapshotRef.MAIN_BRANCH);
    Map values = (Map) JsonUtil.mapper().readValue(properties, Map.class);
    if (!values.isEmpty()) builder.setProperties(values);
    List names = (List) JsonUtil.mapper().readValue(retired, List.class);
    for (Object name : names) builder.removeRef((String) name);
    return builder.build();
  }
}

/** Hadoop's local files, by which a catalog commits, with the permissions that new files have. */
public final class PlainFileSystem extends LocalFileSystem {
  public PlainFileSystem() {
    super(new RawFileSystem());
  }
}

/** Hadoop starts a process for each file that it creates, to set its permissions. */
public final class RawFileSystem extends RawLocalFileSystem {
  public void setPermission(Path path, FsPermission permission) {}
}

/**
 * Files of a local path. Hadoop starts two processes for each one that it creates, which set the
 * permissions of it and of a file of checksums.
 */
public final class LocalFiles extends HadoopFileIO {
  /** Iceberg copies the configuration, without its class loader. */
  public void setConf(Configuration conf) {
    Configuration known = new Configuration(conf);
    known.unset("fs.file.impl");
    known.unset("fs.file.impl.disable.cache");
    super.setConf(known);
  }

  public InputFile newInputFile(String path) {
    return path.startsWith("/") ? Files.localInput(path) : super.newInputFile(path);
  }

  public InputFile newInputFile(String path, long length) {
    return path.startsWith("/") ? Files.localInput(path) : super.newInputFile(path, length);
  }

  public OutputFile newOutputFile(String path) {
    return path.startsWith("/") ? Files.localOutput(path) : super.newOutputFile(path);
  }
}
