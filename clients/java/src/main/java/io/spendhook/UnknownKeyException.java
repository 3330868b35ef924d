package io.spendhook;

/** No published key has made the signature. The set may have a new key, so it is worth reading again. */
final class UnknownKeyException extends InvalidMessageException {
  private static final long serialVersionUID = 1L;

  UnknownKeyException(String message) {
    super(message);
  }
}
