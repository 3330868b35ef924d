/**
 * Receives webhooks of Spendhook exactly once ({@link io.spendhook.Inbox}), and emits events to it ({@link
 * io.spendhook.Emitter}). It needs Java 17 and nothing else.
 */
package io.spendhook;
