//go:build browser

package main

import (
	"net/http"
	"testing"

	"github.com/chromedp/chromedp"
)

// The page of the documents shows the API and, of the webhooks, what was documented,
// without anything that its policy refuses.
func TestDocsInABrowser(t *testing.T) {
	t.Parallel()
	h := newInstallation(t, sharedRedis(t), "")
	d := h.start(t)
	token := command(t, "", "token", "--data-dir", h.dir, "--scope", "platform").stdout
	command(t, `{"description":"Money has moved.","schema":{"properties":{"amount":{"$ref":"#/$defs/money"}},"$defs":{"money":{"type":"string","description":"Of so much."}}},"example":{"amount":"4711.50"}}`,
		"event-type", "put", "PAYMENT_PAID", "--file", "-", "--url", d.api, "--token-file", secretFile(t, token)).want(t, exitOK, "", "")
	b := openBrowserAt(t, d.api)
	if status := b.visit("/docs"); status != http.StatusOK {
		t.Errorf("status %d", status)
	}
	b.says("Events of the source systems")
	b.run(chromedp.Click(`nav a[href="#webhooks"]`))
	b.says("Money has moved.")
	if b.is(`document.getElementById("api").checkVisibility()`) {
		t.Error("both documents are shown")
	}
	b.visit("/docs?#/webhooks/PAYMENT_PAID")
	b.expect("escaping deep link whitespace") // which the library says of every _
	b.says("4711.50")
	b.eventually("the place is opened", func() bool { return b.is(`document.querySelector("#operations-webhooks-PAYMENT_PAID.is-open")`) })
	d.stop(t)
}
