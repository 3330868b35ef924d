package tokens

import (
	"bytes"
	"net/http"
	"net/netip"
	"net/url"
	"unicode/utf8"
)

// Request is a request to the token endpoint (RFC 6749 section 4.4.2).
type Request struct {
	Authorization []string   // the values of the header
	Form          []byte     // the body
	Certificate   string     // "x5t#S256" of the client certificate; "" when none was presented
	Address       netip.Addr // of the client; each address is served in turn
}

// maxParameters bounds the parameters of a form. Parsing 32 KiB of parameters costs a
// hundred times more than a refusal and happens before any rate limit. A request needs four
// parameters.
const maxParameters = 32

// credentials are the client id, secret and scope of a token request.
type credentials struct {
	id, secret string
	scope      string // space-separated; split after the client is authenticated
}

// parseRequest reads a token request and makes all checks that need no client record.
func parseRequest(r Request) (credentials, *Error) {
	form, refusal := parseForm(r.Form)
	if refusal != nil {
		return credentials{}, refusal
	}
	c := credentials{id: form.Get("client_id"), secret: form.Get("client_secret"), scope: form.Get("scope")}
	if len(r.Authorization) > 0 {
		if refusal := c.addBasic(r.Authorization); refusal != nil {
			return c, refusal
		}
	}
	switch grant := form.Get("grant_type"); {
	case c.id == "":
		return c, refuse(InvalidClient, "Client credentials are needed: HTTP Basic, client_id with client_secret, or client_id with a client certificate.")
	case grant != "" && grant != "client_credentials":
		return c, refuse(UnsupportedGrantType, "Only client_credentials is supported.")
	case c.secret == "" && r.Certificate == "":
		return c, refuse(InvalidClient, "A client secret or a client certificate is needed.")
	}
	return c, nil
}

// parseForm reads a form. It refuses a repeated parameter (RFC 6749 section 3.2). The caller ignores
// unknown parameters.
func parseForm(body []byte) (url.Values, *Error) {
	if bytes.Count(body, []byte("&")) >= maxParameters {
		return nil, refuse(InvalidRequest, "The body has too many parameters.")
	}
	form, err := url.ParseQuery(string(body))
	if err != nil {
		return nil, refuse(InvalidRequest, "The body is not a well-formed form.")
	}
	for name, values := range form {
		switch {
		case len(values) > 1:
			return nil, refuse(InvalidRequest, "A parameter is given more than once.")
		case !utf8.ValidString(name) || !utf8.ValidString(values[0]):
			return nil, refuse(InvalidRequest, "The body is not UTF-8.")
		}
	}
	return form, nil
}

// addBasic reads the credentials of HTTP Basic, in which id and secret are
// encoded as in a form (RFC 6749 section 2.3.1).
func (c *credentials) addBasic(headers []string) *Error {
	if len(headers) > 1 {
		return refuse(InvalidRequest, "The Authorization header is given more than once.")
	}
	id, secret, ok := parseBasic(headers[0])
	switch {
	case !ok:
		return refuse(InvalidClient, "The Authorization header is not HTTP Basic with the client's id and secret.")
	case c.secret != "":
		return refuse(InvalidRequest, "The client authenticates in more than one way.")
	case c.id != "" && c.id != id:
		return refuse(InvalidRequest, "client_id is not the client of the Authorization header.")
	}
	c.id, c.secret = id, secret
	return nil
}

func parseBasic(header string) (id, secret string, ok bool) {
	r := http.Request{Header: http.Header{"Authorization": {header}}}
	id, secret, ok = r.BasicAuth()
	if !ok || id == "" || secret == "" {
		return "", "", false
	}
	var err error
	if id, err = url.QueryUnescape(id); err != nil {
		return "", "", false
	}
	if secret, err = url.QueryUnescape(secret); err != nil {
		return "", "", false
	}
	return id, secret, utf8.ValidString(id) && utf8.ValidString(secret)
}
