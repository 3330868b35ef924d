package httpsig

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"
)

// What is signed is what a receiver puts together of what net/http sends.
func TestTheSignedURIIsTheOneThatIsSent(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ url, want string }{
		{"https://a.example", "https://a.example/"},
		{"https://a.example/", "https://a.example/"},
		{"https://a.example?", "https://a.example/?"},
		{"https://a.example?b=c", "https://a.example/?b=c"},
		{"https://a.example/b#c", "https://a.example/b"},
		{"https://a.example/b?c#d", "https://a.example/b?c"},
		{"HTTPS://A.Example/B?C", "https://a.example/B?C"},
		{"https://a.example:443/", "https://a.example/"},
		{"http://a.example:80/", "http://a.example/"},
		{"https://a.example:80/", "https://a.example:80/"},
		{"http://a.example:443/", "http://a.example:443/"},
		{"https://a.example:8443/", "https://a.example:8443/"},
		{"https://a.example:/", "https://a.example/"},
		{"https://bücher.example/ä", "https://xn--bcher-kva.example/%C3%A4"},
		{"https://bücher.example:8443/", "https://xn--bcher-kva.example:8443/"},
		{"https://xn--bcher-kva.example/", "https://xn--bcher-kva.example/"},
		{"https://user:secret@a.example/", "https://a.example/"},
		{"https://[2001:DB8::1]/", "https://[2001:db8::1]/"},
		{"https://[2001:db8::443]:443/", "https://[2001:db8::443]/"},
		{"https://[fe80::1%25eth0]:8443/", "https://[fe80::1]:8443/"},
		{"https://a.example/b%2fc%2F%7e~", "https://a.example/b%2fc%2F%7e~"},
		{`https://a.example/"<b>"|`, "https://a.example/%22%3Cb%3E%22%7C"},
		{"https://a.example/b c", "https://a.example/b%20c"},
		{"https://a.example//b/../c/.", "https://a.example//b/../c/."},
		{"https://a.example/b;c=d,e/(f)?g=%2f&g=+&h[]=1", "https://a.example/b;c=d,e/(f)?g=%2f&g=+&h[]=1"},
	} {
		u, err := url.Parse(c.url)
		if err != nil {
			t.Fatal(err)
		}
		signed, err := sentURI(u)
		if err != nil || signed != c.want {
			t.Errorf("of %s is signed %s, %v, want %s", c.url, signed, err, c.want)
		}
		arrived := arrives(t, u)
		got, err := receivedURI(arrived)
		if err != nil || got != signed {
			t.Errorf("of %s arrives %s, read as %s, %v, but %s is signed", c.url, arrived, got, err, signed)
		}
	}
}

func TestAReceivedURIMayHaveNoPath(t *testing.T) {
	t.Parallel()
	for uri, want := range map[string]string{
		"https://a.example": "https://a.example/", "https://a.example?b=/": "https://a.example/?b=/", "https://a.example#b": "https://a.example/",
	} {
		if got, err := receivedURI(uri); err != nil || got != want {
			t.Errorf("%s is read as %s, %v, want %s", uri, got, err, want)
		}
	}
}

// arrives sends a request as the sender does, and returns its scheme, Host and request line.
func arrives(t *testing.T, u *url.URL) (uri string) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		uri = strings.ToLower(u.Scheme) + "://" + r.Host + r.RequestURI
	}))
	defer server.Close()
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", server.Listener.Addr().String())
	}
	transport := &http.Transport{DialContext: dial, DialTLSContext: dial, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12}}
	defer transport.CloseIdleConnections()
	request := &http.Request{Method: http.MethodPost, URL: u, Host: u.Host, Header: http.Header{}}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	response, err := transport.RoundTrip(request.WithContext(ctx))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	_, _ = io.Copy(io.Discard, response.Body)
	return uri
}

func TestWhatIsNoTargetURIIsRefused(t *testing.T) {
	t.Parallel()
	for _, uri := range []string{
		"", "/", "a.example/b", "://", "https://", "https:///b", "https://?b", "ftp://a.example/", "https://a.example/b c",
		"https://a.example/ü", "https://a.example/b\n", "https://:443/", "https://a b/",
	} {
		if got, err := receivedURI(uri); err == nil {
			t.Errorf("%q is read as %q", uri, got)
		}
	}
}
