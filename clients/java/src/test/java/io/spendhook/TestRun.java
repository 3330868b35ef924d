package io.spendhook;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;
import java.util.Objects;

/** Runs each static method without parameters of the test classes that is not private. There is no library for tests. */
final class TestRun {
  private static final List<Class<?>> CLASSES =
      List.of(
          JsonTest.class,
          StructuredFieldsTest.class,
          VerifierTest.class,
          KeySetTest.class,
          InboxTest.class,
          ChainTest.class,
          FeedTest.class,
          SqlStoreTest.class,
          InboxHandlerTest.class,
          EmitterTest.class,
          OutboxTest.class);

  private TestRun() {}

  public static void main(String[] args) throws Exception {
    int passed = 0;
    int failed = 0;
    for (Class<?> tests : CLASSES) {
      Method[] methods = tests.getDeclaredMethods();
      Arrays.sort(methods, Comparator.comparing(Method::getName));
      for (Method test : methods) {
        if (!Modifier.isStatic(test.getModifiers()) || Modifier.isPrivate(test.getModifiers())
            || test.getParameterCount() > 0 || test.isSynthetic()) {
          continue;
        }
        try {
          test.invoke(null);
          passed++;
        } catch (InvocationTargetException e) {
          failed++;
          System.out.println("FAILED " + tests.getSimpleName() + "." + test.getName());
          e.getCause().printStackTrace(System.out);
        }
      }
    }
    System.out.println(passed + " tests passed, " + failed + " failed");
    System.exit(failed == 0 ? 0 : 1);
  }

  static void equal(Object want, Object got) {
    equal("", want, got);
  }

  static void equal(String what, Object want, Object got) {
    if (!Objects.equals(want, got)) {
      throw new AssertionError(what + " is " + got + ", not " + want);
    }
  }

  interface Action {
    void run() throws Exception;
  }

  /** Returns the exception that an action must throw. */
  static <E extends Throwable> E throwing(Class<E> type, Action action) {
    return throwing("the action", type, action);
  }

  static <E extends Throwable> E throwing(String what, Class<E> type, Action action) {
    try {
      action.run();
    } catch (Throwable e) {
      if (type.isInstance(e)) {
        return type.cast(e);
      }
      throw new AssertionError(what + " throws " + e, e);
    }
    throw new AssertionError(what + " does not throw " + type.getSimpleName());
  }
}
