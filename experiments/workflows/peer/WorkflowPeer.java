import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Properties;
import java.util.UUID;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.processor.PunctuationType;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueIterator;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

/**
 * The workload of a workflow engine on Kafka Streams, for comparison: the store operations of the state benchmark's
 * sections B to D on one store with a changelog. A command that is not right at the workflow's step changes nothing.
 *
 * <p>Arguments: bootstrap servers, topic, state directory, threads. Each 100 ms a line has the commands so far, those
 * refused, starts of tasks, and the sum and the largest of their latencies in ms.
 */
public final class WorkflowPeer {
  private static final String STORE = "core-store";
  private static final long TIMER_MS = 10_000, WINDOW_MS = 30_000;
  private static final byte[] TIMER = "timer".getBytes(StandardCharsets.UTF_8);
  private static final AtomicLong COMMANDS = new AtomicLong(), REFUSED = new AtomicLong();
  private static final AtomicLong STARTS = new AtomicLong(), LATENCY_MS = new AtomicLong(), LONGEST_MS = new AtomicLong();

  public static void main(String[] arguments) throws Exception {
    Properties settings = new Properties();
    settings.put(StreamsConfig.APPLICATION_ID_CONFIG, "workflow-peer");
    settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
    settings.put(StreamsConfig.STATE_DIR_CONFIG, arguments[2]);
    settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, arguments[3]);
    settings.put("auto.offset.reset", "earliest");
    var stores = Stores.persistentKeyValueStore(STORE);
    var bytes = Serdes.ByteArray().deserializer();
    Topology topology = new Topology();
    topology.addSource("commands", bytes, bytes, arguments[1]).addProcessor("core", Core::new, "commands");
    topology.addStateStore(Stores.keyValueStoreBuilder(stores, Serdes.String(), Serdes.ByteArray()), "core");
    KafkaStreams streams = new KafkaStreams(topology, settings);
    streams.setStateListener((now, before) -> System.out.println("state " + now));
    Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(Duration.ofSeconds(5))));
    streams.start();
    while (true) {
      Thread.sleep(100);
      System.out.println("processed " + COMMANDS + " " + REFUSED + " " + STARTS + " " + LATENCY_MS + " " + LONGEST_MS);
    }
  }

  /** One command as our driver writes it: JSON whose fields come in this order. */
  private record Command(String kind, String workflow, int task, byte[] payload) {
    static Command of(byte[] json) {
      int kind = 9, kindEnd = find(json, kind);
      int workflow = kindEnd + 14, workflowEnd = find(json, workflow);
      int at = workflowEnd + 9, task = 0;
      for (; json[at] >= '0' && json[at] <= '9'; at++) {
        task = 10 * task + json[at] - '0';
      }
      byte[] payload = null;
      if (json[at] == ',') {
        payload = java.util.Arrays.copyOfRange(json, at + 12, json.length - 2);
      }
      return new Command(text(json, kind, kindEnd), text(json, workflow, workflowEnd), task, payload);
    }

    private static int find(byte[] json, int at) {
      while (json[at] != '"') {
        at++;
      }
      return at;
    }

    private static String text(byte[] json, int start, int stop) {
      return new String(json, start, stop - start, StandardCharsets.UTF_8);
    }
  }

  private static final class Core implements Processor<byte[], byte[], Void, Void> {
    private KeyValueStore<String, byte[]> store;

    @Override
    public void init(ProcessorContext<Void, Void> context) {
      store = context.getStateStore(STORE);
      context.schedule(Duration.ofSeconds(40), PunctuationType.WALL_CLOCK_TIME, this::sweep);
    }

    @Override
    public void process(Record<byte[], byte[]> record) {
      Command command = Command.of(record.value());
      long now = System.currentTimeMillis();
      boolean taken = switch (command.kind) {
        case "StartWf" -> startWorkflow(command, record.timestamp(), now);
        case "StartTask" -> startTask(command, now);
        case "CompleteTask" -> completeTask(command, now);
        default -> false;
      };
      if (!taken) {
        REFUSED.incrementAndGet();
      }
      COMMANDS.incrementAndGet();
    }

    // A workflow: launch, start, completion, step (as in commands.py).
    private boolean startWorkflow(Command command, long launched, long now) {
      String key = "WORKFLOW/" + command.workflow;
      if (store.get(key) != null) {
        return false;
      }
      store.put(key, longs(launched, now, 0, 1));
      return true;
    }

    private boolean startTask(Command command, long now) {
      String key = "WORKFLOW/" + command.workflow;
      ByteBuffer workflow = buffer(store.get(key));
      if (workflow == null || workflow.getLong(24) != 1 + 2L * command.task) {
        return false;
      }
      long launched = workflow.getLong(8);
      if (command.task > 0) {
        launched = buffer(store.get(run(command.workflow, command.task - 1))).getLong(16);
      }
      String windowKey = windowKey(now);
      ByteBuffer window = window(windowKey);
      count(window, 0, now - launched);
      store.put(String.format("TIMER_OBJECT/%012d/%s", now + TIMER_MS, UUID.randomUUID()), TIMER);
      store.put(run(command.workflow, command.task), longs(launched, now, 0));
      store.put(windowKey, window.array());
      workflow.putLong(24, 2 + 2L * command.task);
      store.put(key, workflow.array());
      STARTS.incrementAndGet();
      LATENCY_MS.addAndGet(now - launched);
      LONGEST_MS.accumulateAndGet(now - launched, Math::max);
      return true;
    }

    private boolean completeTask(Command command, long now) {
      String key = "WORKFLOW/" + command.workflow;
      ByteBuffer workflow = buffer(store.get(key));
      if (workflow == null || workflow.getLong(24) != 2 + 2L * command.task) {
        return false;
      }
      String runKey = run(command.workflow, command.task);
      ByteBuffer before = buffer(store.get(runKey));
      String windowKey = windowKey(now);
      ByteBuffer window = window(windowKey);
      count(window, 24, now - before.getLong(8));
      ByteBuffer after = ByteBuffer.allocate(24 + command.payload.length);
      after.putLong(before.getLong(0)).putLong(before.getLong(8)).putLong(now).put(command.payload);
      store.put(windowKey, window.array());
      store.put(runKey, after.array());
      workflow.putLong(24, 3 + 2L * command.task);
      store.put(key, workflow.array());
      return true;
    }

    private void sweep(long now) {
      try (KeyValueIterator<String, byte[]> due = store.range("TIMER_OBJECT/", String.format("TIMER_OBJECT/%012d", now))) {
        while (due.hasNext()) {
          KeyValue<String, byte[]> timer = due.next();
          store.delete(timer.key);
        }
      }
    }

    private static String run(String workflow, int task) {
      return "TASK_RUN/" + workflow + "/" + task;
    }

    private static String windowKey(long now) {
      return String.format("METRICS_WINDOW/%012d", now - now % WINDOW_MS);
    }

    private ByteBuffer window(String key) {
      byte[] found = store.get(key);
      return ByteBuffer.wrap(found == null ? new byte[48] : found);
    }

    private static void count(ByteBuffer window, int at, long latency) {
      window.putLong(at, window.getLong(at) + 1);
      window.putLong(at + 8, window.getLong(at + 8) + latency);
      window.putLong(at + 16, Math.max(window.getLong(at + 16), latency));
    }

    private static ByteBuffer buffer(byte[] found) {
      return found == null ? null : ByteBuffer.wrap(found);
    }

    private static byte[] longs(long... values) {
      ByteBuffer made = ByteBuffer.allocate(8 * values.length);
      for (long value : values) {
        made.putLong(value);
      }
      return made.array();
    }
  }
}
