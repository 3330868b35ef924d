package tokens

import (
	"encoding/base64"
	"net/url"
	"runtime"
	"strconv"
	"strings"
	"testing"
)

// TestBasicOfRFC6749 is the example of its section 2.3.1.
func TestBasicOfRFC6749(t *testing.T) {
	t.Parallel()
	id, secret, ok := parseBasic("Basic czZCaGRSa3F0MzpnWDFmQmF0M2JW")
	if !ok || id != "s6BhdRkqt3" || secret != "gX1fBat3bV" {
		t.Errorf("%q %q %v", id, secret, ok)
	}
}

func basic(id, secret string) []string {
	text := url.QueryEscape(id) + ":" + url.QueryEscape(secret)
	return []string{"Basic " + base64.StdEncoding.EncodeToString([]byte(text))}
}

func TestParseRequest(t *testing.T) {
	t.Parallel()
	raw := func(text string) []string {
		return []string{"basic " + base64.StdEncoding.EncodeToString([]byte(text))}
	}
	const secret = "s e+c:r&e=t%é"
	for name, c := range map[string]struct {
		header      []string
		form        string
		certificate string
		code        Code // "" for a good one
		id, secret  string
		scope       string
	}{
		"basic":                        {header: basic("id", secret), form: "grant_type=client_credentials", id: "id", secret: secret},
		"basic, nothing in the body":   {header: basic("id", secret), id: "id", secret: secret},
		"basic, a plus is a space":     {header: raw("id:a+b"), id: "id", secret: "a b"},
		"basic, and the same id":       {header: basic("id", "s"), form: "client_id=id", id: "id", secret: "s"},
		"basic, scheme in any case":    {header: raw("id:s"), id: "id", secret: "s"},
		"form":                         {form: "client_id=id&client_secret=" + url.QueryEscape(secret), id: "id", secret: secret},
		"certificate":                  {form: "client_id=id", certificate: "tp", id: "id"},
		"certificate beside a secret":  {form: "client_id=id&client_secret=s", certificate: "tp", id: "id", secret: "s"},
		"scopes":                       {form: "client_id=id&client_secret=s&scope=a%20%20b", id: "id", secret: "s", scope: "a  b"},
		"an empty parameter is none":   {header: basic("id", "s"), form: "grant_type=&scope=&client_secret=", id: "id", secret: "s"},
		"an unknown parameter":         {header: basic("id", "s"), form: "resource=x", id: "id", secret: "s"},
		"nothing":                      {code: InvalidClient},
		"an id alone":                  {form: "client_id=id", code: InvalidClient},
		"a secret alone":               {form: "client_secret=s", code: InvalidClient},
		"a certificate alone":          {certificate: "tp", code: InvalidClient},
		"another grant":                {header: basic("id", "s"), form: "grant_type=password", code: UnsupportedGrantType},
		"two ways":                     {header: basic("id", "s"), form: "client_id=id&client_secret=s", code: InvalidRequest},
		"two ways, secret only":        {header: basic("id", "s"), form: "client_secret=s", code: InvalidRequest},
		"basic, and another id":        {header: basic("id", "s"), form: "client_id=other", code: InvalidRequest},
		"two headers":                  {header: append(basic("id", "s"), basic("id", "s")...), code: InvalidRequest},
		"a parameter twice":            {header: basic("id", "s"), form: "scope=a&scope=b", code: InvalidRequest},
		"an unknown parameter twice":   {header: basic("id", "s"), form: "x=a&x=b", code: InvalidRequest},
		"an id twice":                  {form: "client_id=id&client_id=id&client_secret=s", code: InvalidRequest},
		"a bad escape":                 {form: "client_id=%zz", code: InvalidRequest},
		"a semicolon":                  {form: "client_id=id;client_secret=s", code: InvalidRequest},
		"many parameters":              {form: "client_id=id&client_secret=s" + strings.Repeat("&", maxParameters-2), id: "id", secret: "s"},
		"too many parameters":          {form: "client_id=id&client_secret=s" + strings.Repeat("&", maxParameters-1), code: InvalidRequest},
		"not UTF-8":                    {form: "client_id=%ff&client_secret=s", code: InvalidRequest},
		"JSON":                         {form: `{"client_id":"id"}`, code: InvalidClient},
		"bearer":                       {header: []string{"Bearer x"}, code: InvalidClient},
		"an empty header":              {header: []string{""}, code: InvalidClient},
		"basic without a colon":        {header: raw("id"), code: InvalidClient},
		"basic without an id":          {header: raw(":s"), code: InvalidClient},
		"basic without a secret":       {header: raw("id:"), certificate: "tp", code: InvalidClient},
		"basic that is no base64":      {header: []string{"Basic *"}, code: InvalidClient},
		"basic with a bad escape":      {header: raw("id:%zz"), code: InvalidClient},
		"basic with a bad escaped id":  {header: raw("%zz:s"), code: InvalidClient},
		"basic that is not UTF-8":      {header: raw("id:\xff"), code: InvalidClient},
		"another grant, and no client": {form: "grant_type=password", code: InvalidClient},
	} {
		got, refusal := parseRequest(Request{Authorization: c.header, Form: []byte(c.form), Certificate: c.certificate})
		switch {
		case c.code == "" && refusal != nil:
			t.Errorf("%s: %v", name, refusal)
		case c.code != "" && (refusal == nil || refusal.Code != c.code):
			t.Errorf("%s: %+v, %+v, want %s", name, got, refusal, c.code)
		case c.code == "" && (got.id != c.id || got.secret != c.secret || got.scope != c.scope):
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// TestHostileFormsAreCheap bounds the memory that reading a form takes by three
// times its size: it is read before any limit applies.
//
//nolint:paralleltest // others' memory would be counted too
func TestHostileFormsAreCheap(t *testing.T) {
	var many strings.Builder
	for i := 0; many.Len() < 32<<10-10; i++ {
		many.WriteString(strconv.FormatInt(int64(i), 36) + "&")
	}
	for name, form := range map[string]string{
		"parameters": many.String(),
		"one name":   strings.Repeat("a&", 9999),
		"scopes":     "client_id=id&client_secret=s&scope=" + strings.Repeat("a+", 15<<10),
		"escapes":    "client_id=id&client_secret=" + strings.Repeat("%61", 10<<10),
	} {
		r := Request{Form: []byte(form)}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, _ = parseRequest(r)
		runtime.ReadMemStats(&after)
		if used, limit := after.TotalAlloc-before.TotalAlloc, uint64(3*len(form)); used > limit {
			t.Errorf("%s: %d bytes, want at most %d", name, used, limit)
		}
	}
}

// FuzzTokenRequest checks that accepted credentials are the ones that were sent, and that no
// refusal repeats them.
func FuzzTokenRequest(f *testing.F) {
	f.Add("Basic czZCaGRSa3F0MzpnWDFmQmF0M2JW", []byte("grant_type=client_credentials&scope=a+b"), "")
	f.Add("", []byte("client_id=id&client_secret=hunter2hunter2"), "tp")
	f.Add("Basic aWQ6JXp6", []byte("client_id=%zz"), "")
	f.Fuzz(func(t *testing.T, header string, form []byte, certificate string) {
		r := Request{Form: form, Certificate: certificate}
		if header != "" {
			r.Authorization = []string{header}
		}
		c, refusal := parseRequest(r)
		if refusal != nil {
			if len(c.secret) > 8 && strings.Contains(refusal.Error(), c.secret) {
				t.Errorf("%q repeats the secret", refusal.Error())
			}
			return
		}
		if c.id == "" || c.secret == "" && certificate == "" {
			t.Errorf("%+v is taken", c)
		}
		if header == "" {
			return
		}
		again, refusal := parseRequest(Request{Authorization: basic(c.id, c.secret)})
		if refusal != nil || again.id != c.id || again.secret != c.secret {
			t.Errorf("%+v and %+v, %v", c, again, refusal)
		}
	})
}
