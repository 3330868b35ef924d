package io.spendhook;

/**
 * The answer to a delivery.
 *
 * @param status the HTTP status
 * @param body the text of the body; empty for a status that has none
 */
public record Response(int status, String body) {}
