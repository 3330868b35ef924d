package subscribers_test

import (
	"bytes"
	"encoding/base64"
	stdjson "encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"spendhook/internal/secret"
	"spendhook/subscribers"
)

func TestSecretIsNeverPrinted(t *testing.T) {
	t.Parallel()
	const plain = "whsec_c2VjcmV0IGhlcmU="
	value := secret.Text(plain)
	holder := subscribers.Subscriber{Name: "n", Secrets: []subscribers.SigningSecret{{Key: value}}}
	for _, v := range []any{value, &value, holder, &holder, []secret.Text{value}, map[string]secret.Text{"k": value}} {
		for how, text := range allPrints(t, v) {
			if strings.Contains(text, plain[6:20]) || strings.Contains(text, fmt.Sprintf("%x", plain[6:20])) {
				t.Errorf("%s of %T shows the secret: %s", how, v, text)
			}
		}
	}
	if got := value.Reveal(); got != plain {
		t.Errorf("Reveal() = %q", got)
	}
}

func allPrints(t *testing.T, value any) map[string]string {
	t.Helper()
	all := map[string]string{"error": fmt.Errorf("wrapped: %v", value).Error()}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%t", "%b", "%U"} {
		all[verb] = fmt.Sprintf(verb, value)
	}
	std, err := stdjson.Marshal(value)
	noErr(t, err)
	all["encoding/json"] = string(std)
	v2, err := json.Marshal(value)
	noErr(t, err)
	all["json v2"] = string(v2)
	for name, handler := range map[string]func(*bytes.Buffer) slog.Handler{
		"slog text": func(w *bytes.Buffer) slog.Handler { return slog.NewTextHandler(w, nil) },
		"slog json": func(w *bytes.Buffer) slog.Handler { return slog.NewJSONHandler(w, nil) },
	} {
		var out bytes.Buffer
		slog.New(handler(&out)).Info("subscriber", "value", value)
		all[name] = out.String()
	}
	return all
}

func TestSecretsAre32RandomBytes(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	seen := map[string]bool{}
	for i := range 10 {
		plain := b.Create(t, fmt.Sprintf("https://example.com/%d", i)).Secrets[0].Key.Reveal()
		key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(plain, "whsec_"))
		if err != nil || len(key) != 32 || !strings.HasPrefix(plain, "whsec_") {
			t.Errorf("secret has %d bytes, %v", len(key), err)
		}
		seen[plain] = true
	}
	if len(seen) != 10 {
		t.Errorf("%d distinct secrets of 10", len(seen))
	}
}
