package tidelog.delta;

import io.delta.storage.S3SingleDriverLogStore;
import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.Arrays;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * Writes the log of Delta tables on S3 so that no commit replaces another writer's.
 *
 * <p>Delta's own class looks whether the commit exists and then writes it; a PUT that is held up in
 * between replaces what another driver has written (github.com/delta-io/delta/issues/3596). This one
 * has the store check it: S3A sends {@code If-None-Match: *} (HADOOP-19256; hadoop-aws 3.4.2 or
 * later). For {@code spark.delta.logStore.s3a.impl}, and {@code s3.impl}.
 */
public class S3LogStore extends S3SingleDriverLogStore {
  /** Hadoop's {@code FS_OPTION_CREATE_CONDITIONAL_OVERWRITE}. */
  private static final String PUT_IF_ABSENT = "fs.option.create.conditional.overwrite";

  public S3LogStore(Configuration hadoopConf) {
    super(hadoopConf);
  }

  /**
   * @throws FileAlreadyExistsException {@code path} has other content, and not {@code overwrite}
   * @throws IOException whether it was written may be unknown; it never replaces another file
   */
  @Override
  public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration conf)
      throws IOException {
    if (overwrite) {
      super.write(path, actions, true, conf);
      return;
    }
    FileSystem store = path.getFileSystem(conf);
    if (store.exists(path)) { // spares the upload, and no server that ignores conditions is worse off
      throw new FileAlreadyExistsException(path.toString());
    }
    MessageDigest written = sha256();
    FSDataOutputStream file = create(store, path);
    boolean complete = false;
    try {
      while (actions.hasNext()) {
        byte[] line = (actions.next() + "\n").getBytes(StandardCharsets.UTF_8);
        written.update(line);
        file.write(line);
      }
      complete = true;
    } finally {
      if (!complete) {
        file.abort(); // to close it would commit the part that was written
      }
    }
    try {
      file.close();
    } catch (IOException failure) {
      checkWritten(store, path, written.digest(), failure);
    }
  }

  private static FSDataOutputStream create(FileSystem store, Path path) throws IOException {
    FSDataOutputStreamBuilder<?, ?> file = store.createFile(path);
    try {
      file.must(PUT_IF_ABSENT, true);
      return file.build();
    } catch (IllegalArgumentException unknownOption) {
      throw new IOException(
          store.getClass().getName() + " can't write " + path + " without replacing what another "
              + "writer may have put there: take hadoop-aws 3.4.2 or later", unknownOption);
    }
  }

  /**
   * Returns if the file is there as it was to be written: S3A repeats a PUT whose answer got lost,
   * and the store then refuses it for what the first one has written.
   */
  private static void checkWritten(FileSystem store, Path path, byte[] digest, IOException failure)
      throws IOException {
    MessageDigest found = sha256();
    try (InputStream file = store.open(path)) {
      byte[] block = new byte[1 << 16];
      for (int length = file.read(block); length >= 0; length = file.read(block)) {
        found.update(block, 0, length);
      }
    } catch (IOException unreadable) {
      failure.addSuppressed(unreadable);
      throw failure;
    }
    if (!Arrays.equals(found.digest(), digest)) {
      FileAlreadyExistsException conflict = new FileAlreadyExistsException(path.toString());
      conflict.initCause(failure);
      throw conflict;
    }
  }

  private static MessageDigest sha256() {
    try {
      return MessageDigest.getInstance("SHA-256");
    } catch (NoSuchAlgorithmException impossible) { // every Java platform has it
      throw new IllegalStateException(impossible);
    }
  }
}
