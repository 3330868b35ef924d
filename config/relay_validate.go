package config

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"spendhook/internal/secret"
)

const (
	// maxSources bounds the sources of a relay.
	maxSources = 50
	// maxExpression bounds an expression of a mapping, in bytes.
	maxExpression = 10_000
	// maxQueue is what RabbitMQ allows, in bytes.
	maxQueue = 255
)

var (
	sourceName = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,62}$`)
	topicName  = regexp.MustCompile(`^[A-Za-z0-9._-]{1,249}$`)
)

// relayChecker is a checker of the settings of a relay.
type relayChecker struct {
	checker

	secrets bool // it reads the files of secrets
}

func (v relayChecker) relay(r *Relay) {
	v.daemonURL(r.URL)
	v.address("admin_listen", r.AdminListen)
	v.tlsFiles("", r.TLSFiles, true, "")
	own := v.credentials("", &r.credentials)
	if len(r.Sources) > maxSources {
		v.Add("sources", "OUT_OF_RANGE", "has %d sources, want at most %d", len(r.Sources), maxSources)
		return
	}
	read := map[string]string{}
	for i := range r.Sources {
		s := &r.Sources[i]
		if s.Name == "" { // it is a problem already
			continue
		}
		key := "sources." + s.Name
		switch has := v.credentials(key+".", &s.credentials); {
		case !has && own:
			s.credentials = r.credentials
		case !has:
			v.Add(key+".token_file", "REQUIRED", "is empty, and so is token_file: set one of the two, or client_id and client_secret_file")
		}
		v.source(key, s, read)
	}
}

// daemonURL requires TLS to another machine, since each request has a token.
func (v relayChecker) daemonURL(raw string) {
	u, err := url.Parse(raw)
	switch {
	case raw == "":
		v.notEmpty("url", raw)
	case err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "":
		v.Add("url", "INVALID", "want an address such as https://hooks.example.com, without user, query or fragment")
	case u.Scheme == "http" && !isLoopback(u.Hostname()):
		v.unsafe("url", "an attacker on the network could read the token: use https")
	}
}

func isLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

// credentials checks that there is one way to get a token at most, reads its secret, and reports whether there is one.
func (v relayChecker) credentials(prefix string, c *credentials) bool {
	token, client := c.TokenFile != "", c.ClientID != "" || c.ClientSecretFile != ""
	switch {
	case token && client:
		v.Add(prefix+"token_file", "CONFLICT", "client_id or client_secret_file is set too: set only one of the two ways")
	case token:
		c.Token = v.secretFile(prefix+"token_file", c.TokenFile)
	case client && c.ClientID == "":
		v.Add(prefix+"client_id", "REQUIRED", "is empty: client_id and client_secret_file go together")
	case client && c.ClientSecretFile == "":
		v.Add(prefix+"client_secret_file", "REQUIRED", "is empty: client_id and client_secret_file go together")
	case client:
		c.ClientSecret = v.secretFile(prefix+"client_secret_file", c.ClientSecretFile)
	}
	return token || client
}

// secretFile reads a secret, without white space around it; "": secrets are not read.
func (v relayChecker) secretFile(key, file string) secret.Text {
	if !v.secrets {
		return ""
	}
	text, err := os.ReadFile(file)
	text = bytes.TrimSpace(text)
	switch {
	case err != nil:
		v.Add(key, "INVALID", "%v", err)
	case len(text) == 0:
		v.Add(key, "INVALID", "%s is empty", file)
	case bytes.ContainsAny(text, "\n\r\x00"):
		v.Add(key, "INVALID", "%s has more than one line", file)
	}
	return secret.Text(text)
}

// tlsFiles checks files for TLS. encrypted says whether the connection has TLS, how says how to set it.
func (v relayChecker) tlsFiles(prefix string, f TLSFiles, encrypted bool, how string) {
	if (f.CertFile == "") != (f.KeyFile == "") {
		v.Add(prefix+"key_file", "INVALID", "cert_file and key_file go together: set both or neither")
	}
	if !encrypted && f != (TLSFiles{}) {
		v.Add(prefix+"ca_file", "CONFLICT", "ca_file, cert_file and key_file are for TLS: %s", how)
	}
}

// source checks a source. read has what the sources before it read, with their names.
func (v relayChecker) source(key string, s *RelaySource, read map[string]string) {
	v.companies(key+".companies", s.Companies)
	var kinds []string
	var reads []string
	if s.Kafka != nil {
		kinds, reads = append(kinds, "kafka"), v.kafka(key+".kafka", s.Kafka)
	}
	if s.RabbitMQ != nil {
		kinds, reads = append(kinds, "rabbitmq"), v.rabbitMQ(key+".rabbitmq", s.RabbitMQ)
	}
	if s.Postgres != nil {
		kinds, reads = append(kinds, "postgres"), v.postgres(key+".postgres", s.Postgres)
	}
	if len(kinds) != 1 {
		v.Add(key, "INVALID", "want exactly one of kafka, rabbitmq and postgres")
	}
	for _, place := range reads {
		if other, taken := read[place]; taken {
			v.Add(key, "DUPLICATE", "reads what the source %s reads", other)
			break
		}
		read[place] = s.Name
	}
	for name, text := range s.Mapping.byName() {
		if len(text) > maxExpression {
			v.Add(key+".mapping."+name, "TOO_LONG", "is longer than %d bytes", maxExpression)
		}
	}
}

func (m *mapping) byName() map[string]string {
	return map[string]string{
		"id": m.ID, "event": m.Event, "timestamp": m.Timestamp, "companyUuid": m.CompanyUUID, "metadata": m.Metadata,
		"errorCode": m.ErrorCode, "errorMessage": m.ErrorMessage, "key": m.Key,
	}
}

func (v relayChecker) companies(key string, list []uuid.UUID) {
	if len(list) == 0 && !v.has(key) {
		v.Add(key, "REQUIRED", "is empty: list the companies that the records may name")
	}
	for i, id := range list {
		switch {
		case id == uuid.Nil:
			v.Add(fmt.Sprintf("%s[%d]", key, i), "INVALID", "is the nil UUID")
		case slices.Contains(list[:i], id):
			v.Add(fmt.Sprintf("%s[%d]", key, i), "DUPLICATE", "is in the list already")
		}
	}
}

// kafka checks topics, and returns what tells them from others.
func (v relayChecker) kafka(key string, k *kafka) (reads []string) {
	v.brokers(key+".brokers", k.Brokers)
	v.notEmpty(key+".group", k.Group)
	v.topic(key+".dead_letter_topic", k.DeadLetterTopic)
	if len(k.Topics) == 0 {
		v.notEmpty(key+".topics", "")
	}
	brokers := strings.Join(slices.Sorted(slices.Values(k.Brokers)), ",")
	for i, topic := range k.Topics {
		key := fmt.Sprintf("%s.topics[%d]", key, i)
		v.topic(key, topic)
		switch {
		case slices.Contains(k.Topics[:i], topic):
			v.Add(key, "DUPLICATE", "is in the list already")
		case topic == k.DeadLetterTopic:
			v.Add(key, "CONFLICT", "is dead_letter_topic too")
		default:
			reads = append(reads, fmt.Sprintf("kafka %q %q %q", brokers, k.Group, topic))
		}
	}
	v.tlsFiles(key+".", k.TLSFiles, k.TLS, "set tls to true")
	if k.SASL != nil {
		v.sasl(key+".sasl", k)
	}
	return reads
}

func (v relayChecker) brokers(key string, list []string) {
	if len(list) == 0 {
		v.notEmpty(key, "")
	}
	for i, broker := range list {
		host, port, err := net.SplitHostPort(broker)
		if _, portErr := strconv.ParseUint(port, 10, 16); err != nil || portErr != nil || host == "" {
			v.Add(fmt.Sprintf("%s[%d]", key, i), "INVALID", "want host:port, as in kafka.example.com:9092")
		}
	}
}

func (v relayChecker) topic(key, name string) {
	switch {
	case name == "":
		v.notEmpty(key, name)
	case !topicName.MatchString(name):
		v.Add(key, "INVALID", "want up to 249 of A-Z, a-z, 0-9, ., _ and -")
	}
}

func (v relayChecker) sasl(key string, k *kafka) {
	v.notEmpty(key+".user", k.SASL.User)
	if k.SASL.PasswordFile == "" {
		v.notEmpty(key+".password_file", "")
	} else {
		k.SASL.Password = v.secretFile(key+".password_file", k.SASL.PasswordFile)
	}
	away := slices.ContainsFunc(k.Brokers, func(broker string) bool {
		host, _, _ := net.SplitHostPort(broker)
		return !isLoopback(host)
	})
	if k.SASL.Mechanism == "plain" && !k.TLS && away {
		v.unsafe(key+".mechanism", "an attacker on the network could read the password: set tls to true, or use scram-sha-512")
	}
}

// rabbitMQ checks a queue, and returns what tells it from others.
func (v relayChecker) rabbitMQ(key string, q *rabbitMQ) []string {
	scheme := v.secretURL(key, &q.URL, q.URLFile, "amqps://user:password@host/vhost", "amqp", "amqps")
	v.queue(key+".queue", q.Queue)
	v.queue(key+".dead_letter_queue", q.DeadLetterQueue)
	if q.Queue != "" && q.Queue == q.DeadLetterQueue {
		v.Add(key+".dead_letter_queue", "CONFLICT", "is queue too")
	}
	if q.DeliveryLimit != 0 && q.DeliveryLimit < 4 {
		v.Add(key+".delivery_limit", "OUT_OF_RANGE", "must be at least 4, since the relay stops at half of it; 0 means none")
	}
	v.tlsFiles(key+".", q.TLSFiles, scheme != "amqp", "begin the address with amqps://")
	if scheme == "" {
		return nil
	}
	return []string{fmt.Sprintf("rabbitmq %q %q", q.URL.Reveal(), q.Queue)}
}

func (v relayChecker) queue(key, name string) {
	v.notEmpty(key, name)
	if len(name) > maxQueue {
		v.Add(key, "TOO_LONG", "is longer than %d bytes", maxQueue)
	}
}

// postgres checks a table, and returns what tells it from others.
func (v relayChecker) postgres(key string, p *postgres) []string {
	v.notEmpty(key+".table", p.Table)
	if v.secretURL(key, &p.URL, p.URLFile, "postgres://user:password@host/database", "postgres", "postgresql") == "" {
		return nil
	}
	return []string{fmt.Sprintf("postgres %q %q", p.URL.Reveal(), p.Table)}
}

// secretURL checks an address, which a file may have, and returns its scheme; "": it is not valid. It reports no part of
// the address, because that may contain a password.
func (v relayChecker) secretURL(key string, address *secret.Text, file, example string, schemes ...string) string {
	place := key + ".url"
	switch {
	case *address != "" && file != "":
		v.Add(key+".url_file", "CONFLICT", "url is set too: set only one of them")
		return ""
	case file != "":
		place = key + ".url_file"
		if *address = v.secretFile(place, file); *address == "" {
			return ""
		}
	case *address == "":
		v.Add(place, "REQUIRED", "is empty: set url or url_file")
		return ""
	}
	u, err := url.Parse(address.Reveal())
	if err != nil || !slices.Contains(schemes, u.Scheme) {
		v.Add(place, "INVALID", "want an address such as %s", example)
		return ""
	}
	return u.Scheme
}
