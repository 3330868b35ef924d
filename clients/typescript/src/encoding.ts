/** Decodes base64 with its padding; null for anything else. Buffer.from alone skips what is no base64. */
export function decodeBase64(text: string): Buffer | null {
  return text.length % 4 === 0 && /^[A-Za-z0-9+/]*={0,2}$/.test(text) ? Buffer.from(text, "base64") : null;
}

const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** Parses JSON in UTF-8; undefined if it is none. */
export function parseJson(body: Uint8Array): unknown {
  try {
    return JSON.parse(utf8.decode(body));
  } catch {
    return undefined;
  }
}

/** Returns a JSON object; null for any other value. */
export function asObject(value: unknown): Record<string, unknown> | null {
  return typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Record<string, unknown>) : null;
}

/** Returns a string; null for any other value. */
export function asString(value: unknown): string | null {
  return typeof value === "string" ? value : null;
}
