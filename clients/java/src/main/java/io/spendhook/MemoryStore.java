package io.spendhook;

import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;

/** A store for tests: it forgets all when the process ends. It runs one transaction at a time. */
public final class MemoryStore implements Store<MemoryStore.Changes> {
  private final Set<String> ids = new HashSet<>();
  private String cursor = "";

  /** Makes an empty store. */
  public MemoryStore() {}

  /** What work changes in memory. */
  @FunctionalInterface
  public interface Changes {
    /**
     * Runs something at the commit of the transaction, so that work that fails changes nothing.
     *
     * @param change what is to be done; it must not throw
     */
    void onCommit(Runnable change);
  }

  @Override
  public synchronized <R> R transaction(Action<Changes, R> action) throws Exception {
    Changed changed = new Changed();
    R result = action.run(changed);
    changed.commit();
    return result;
  }

  private final class Changed implements Transaction<Changes> {
    private final Set<String> added = new HashSet<>();
    private String moved; // null: not
    private final List<Runnable> changes = new ArrayList<>();

    void commit() {
      ids.addAll(added);
      cursor = cursor();
      changes.forEach(Runnable::run);
    }

    @Override
    public boolean add(String id, Long sequence) {
      return !ids.contains(id) && added.add(id);
    }

    @Override
    public String cursor() {
      return moved == null ? cursor : moved;
    }

    @Override
    public void setCursor(String cursor) {
      moved = cursor;
    }

    @Override
    public Changes unwrap() {
      return changes::add;
    }
  }
}
