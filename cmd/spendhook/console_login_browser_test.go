//go:build browser

package main

import (
	"cmp"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/chromedp"

	"spendhook/console/login/logintest"
)

// TestConsoleLoginInABrowser: a browser gets its session although its cookie is not sent when a page of another site leads
// to the console.
func TestConsoleLoginInABrowser(t *testing.T) {
	provider := logintest.New(t)
	w := newStory(t, loginSettings(provider.Issuer, logintest.ClientSecret))
	provider.SignIn(map[string]any{"sub": "ann", "groups": []string{"operators"}})
	provider.Set(func(s *logintest.State) { s.Asks = true })
	dir := cmp.Or(os.Getenv("CONSOLE_SCREENSHOTS"), t.TempDir())
	b := openBrowserAt(t, w.daemon.api)
	b.expect("status of 40")
	look := func(name string) {
		t.Helper()
		for suffix, size := range map[string][2]int64{"-narrow": {360, 780}, "-wide": {1440, 900}} {
			for _, scheme := range []string{"light", "dark"} {
				b.run(chromedp.EmulateViewport(size[0], size[1]))
				b.prefers(scheme)
				picture, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
				if err != nil {
					t.Fatal(err)
				}
				writeFile(t, filepath.Join(dir, name+suffix+"-"+scheme+".png"), picture)
			}
		}
	}
	if status := b.visit("/"); status != http.StatusUnauthorized {
		t.Errorf("/: %d", status)
	}
	look("sign-in")
	b.goes("Sign in")
	b.goes("It is me")
	b.says("Overview")
	b.says("All companies")
	if status := b.visit("/console/system"); status != http.StatusOK {
		t.Errorf("with the session: %d", status)
	}
	b.goes("Sign out")
	b.says("Signed out")
	look("signed-out")
	provider.SignIn(map[string]any{"sub": "ann", "groups": []string{"helpers", "acme"}})
	b.goes("Sign in")
	b.goes("It is me")
	b.says("Choose a company")
	look("choose")
	b.goes("Company")
	b.says("Overview")
	b.goes("Sign out")
	provider.SignIn(map[string]any{"sub": "eve", "groups": []string{"guests"}})
	b.goes("Sign in")
	b.goes("It is me")
	b.says("No access")
	look("no-access")
	if status := b.visit("/console/"); status != http.StatusUnauthorized {
		t.Errorf("without a role: %d", status)
	}
}
