// NativeThreads THREADS TURNS: what of a JVM lies in the C heap: zlib's streams, direct buffers, the
// just-in-time compilers' own memory, thread stacks' records. Each thread deflates and inflates
// with streams that are new each turn, through direct buffers that are new as well.
import java.nio.ByteBuffer;
import java.util.zip.Deflater;
import java.util.zip.Inflater;

public class NativeThreads {
  static byte[] text(int number) {
    StringBuilder text = new StringBuilder();
    for (int i = 0; i < 400; ++i) text.append("line ").append(i * number % 97).append(" of a file\n");
    return text.toString().getBytes();
  }

  static int turn(int number) throws Exception {
    byte[] plain = text(number);
    ByteBuffer packed = ByteBuffer.allocateDirect(plain.length + 64);
    Deflater deflater = new Deflater(1);
    deflater.setInput(plain);
    deflater.finish();
    while (!deflater.finished()) deflater.deflate(packed);
    deflater.end();
    packed.flip();
    ByteBuffer again = ByteBuffer.allocateDirect(plain.length);
    Inflater inflater = new Inflater();
    inflater.setInput(packed);
    while (!inflater.finished()) inflater.inflate(again);
    inflater.end();
    again.flip();
    if (again.remaining() != plain.length) throw new IllegalStateException("bytes were lost");
    return again.get(plain.length - 2);
  }

  public static void main(String[] arguments) throws Exception {
    int threads = Integer.parseInt(arguments[0]);
    int turns = Integer.parseInt(arguments[1]);
    Thread[] team = new Thread[threads];
    for (int i = 0; i < threads; ++i) {
      int number = i + 1;
      team[i] = new Thread(() -> {
        try {
          for (int turn = 0; turn < turns; ++turn) turn(number * 1000 + turn);
        } catch (Exception wrong) {
          wrong.printStackTrace();
          System.exit(1);
        }
      });
      team[i].start();
    }
    for (Thread thread : team) thread.join();
  }
}
