package config

import (
	"reflect"
	"strings"

	"github.com/google/uuid"
	"go.yaml.in/yaml/v4"

	"spendhook/internal/secret"
)

// Relay has the settings of the command relay. Its tags are as those of Config, and a struct without a name has its
// settings one level higher. testdata/relay-good/full.yml explains each setting.
type Relay struct {
	URL string `yaml:"url"`
	credentials
	TLSFiles
	AdminListen string        `yaml:"admin_listen" default:"127.0.0.1:9091"`
	Log         Log           `yaml:"log"`
	Sources     []RelaySource // in the order of the file
}

// credentials are a token, or the id and the secret of an OAuth client; the other fields are empty.
type credentials struct {
	TokenFile        string `yaml:"token_file"`
	ClientID         string `yaml:"client_id"`
	ClientSecretFile string `yaml:"client_secret_file"`
	// Token and ClientSecret are what the files have, without white space around.
	Token, ClientSecret secret.Text
}

// TLSFiles are the files for TLS to a server: its CA ("": the system's), and a certificate with its key ("": none).
type TLSFiles struct {
	CAFile   string `yaml:"ca_file"`
	CertFile string `yaml:"cert_file"`
	KeyFile  string `yaml:"key_file"`
}

// RelaySource is where records come from: exactly one of Kafka, RabbitMQ and Postgres is not nil. Its credentials are
// those of the relay if it has none.
type RelaySource struct {
	Name      string
	Companies []uuid.UUID `yaml:"companies"`
	credentials
	Kafka    *kafka    `yaml:"kafka"`
	RabbitMQ *rabbitMQ `yaml:"rabbitmq"`
	Postgres *postgres `yaml:"postgres"`
	Mapping  mapping   `yaml:"mapping"`
}

// kafka are topics. SASL nil means that the relay does not authenticate.
type kafka struct {
	Brokers         []string `yaml:"brokers"`
	Topics          []string `yaml:"topics"`
	Group           string   `yaml:"group" default:"spendhook-relay"`
	DeadLetterTopic string   `yaml:"dead_letter_topic"`
	Start           string   `yaml:"start" default:"oldest" enum:"oldest,newest"`
	TLS             bool     `yaml:"tls"`
	TLSFiles
	SASL *sasl `yaml:"sasl"`
}

// sasl is how the relay authenticates at Kafka. Password is what PasswordFile has.
type sasl struct {
	Mechanism    string `yaml:"mechanism" enum:"plain,scram-sha-256,scram-sha-512"`
	User         string `yaml:"user"`
	PasswordFile string `yaml:"password_file"`
	Password     secret.Text
}

// rabbitMQ is a queue. URL is also what URLFile has.
type rabbitMQ struct {
	URL             secret.Text `yaml:"url"`
	URLFile         string      `yaml:"url_file"`
	Queue           string      `yaml:"queue"`
	DeadLetterQueue string      `yaml:"dead_letter_queue"`
	DeliveryLimit   int         `yaml:"delivery_limit" default:"0"`
	TLSFiles
}

// postgres is the table of an outbox. URL is also what URLFile has.
type postgres struct {
	URL     secret.Text `yaml:"url"`
	URLFile string      `yaml:"url_file"`
	Table   string      `yaml:"table" default:"spendhook_outbox"`
}

// mapping has expressions by field of the event; "" means the default of the field. Load does not compile them.
type mapping struct {
	ID           string `yaml:"id"`
	Event        string `yaml:"event"`
	Timestamp    string `yaml:"timestamp"`
	CompanyUUID  string `yaml:"companyUuid"`
	Metadata     string `yaml:"metadata"`
	ErrorCode    string `yaml:"errorCode"`
	ErrorMessage string `yaml:"errorMessage"`
	Key          string `yaml:"key"`
}

// LoadRelay returns the settings of the YAML file at path. Of the environment, in the form of os.Environ,
// SPENDHOOK_RELAY_URL, SPENDHOOK_RELAY_ADMIN_LISTEN and SPENDHOOK_RELAY_LOG_LEVEL override the file. With secrets it also
// reads the files of secrets, which need not exist otherwise. One *invalid.Error has all problems, and no secret. Any
// other error means that the file cannot be read or parsed.
func LoadRelay(path string, environ []string, secrets bool) (Relay, error) {
	var r Relay
	var sources yaml.Node
	l := loader{settings: map[string]setting{}}
	l.register("", reflect.ValueOf(&r).Elem(), nil)
	l.settings["sources"] = setting{Value: reflect.ValueOf(&sources).Elem()}
	if err := l.file(path); err != nil {
		return Relay{}, err
	}
	delete(l.settings, "sources")
	r.Sources = l.sources(&sources)
	l.relayEnvironment(environ)
	v := relayChecker{checker{&l.problems}, secrets}
	v.tags(l.settings)
	v.relay(&r)
	return r, l.problems.OrNil()
}

// register adds the settings of a struct with their defaults. A pointer is set if the node, which may be nil, has its key.
func (l *loader) register(prefix string, v reflect.Value, n *yaml.Node) {
	for field, value := range v.Fields() {
		name := field.Tag.Get("yaml")
		key := prefix + name
		switch {
		case field.Anonymous:
			l.register(prefix, value, n)
		case name == "":
		case value.Kind() == reflect.Struct:
			l.register(key+".", value, child(n, name))
		case value.Kind() == reflect.Pointer:
			if inner := child(n, name); inner != nil {
				value.Set(reflect.New(value.Type().Elem()))
				l.register(key+".", value.Elem(), inner)
			}
		default:
			l.settings[key] = setting{value, field.Tag}
			if text := field.Tag.Get("default"); text != "" {
				l.setText(key, "default", text)
			}
		}
	}
}

// child is the value of a key; nil: there is none.
func child(n *yaml.Node, name string) *yaml.Node {
	if n == nil || n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == name {
			return n.Content[i+1]
		}
	}
	return nil
}

// sources reads the sources by name.
func (l *loader) sources(n *yaml.Node) []RelaySource {
	switch {
	case n.Kind == 0:
		l.problems.Add("sources", "REQUIRED", "is empty")
		return nil
	case n.Kind != yaml.MappingNode:
		l.problems.Add("sources", "INVALID", "line %d: want keys with values", n.Line)
		return nil
	}
	list := make([]RelaySource, len(n.Content)/2)
	seen := map[string]bool{}
	for i := range list {
		name, value := n.Content[2*i], n.Content[2*i+1]
		key := "sources." + name.Value
		switch {
		case seen[name.Value]:
			l.problems.Add(key, "DUPLICATE_KEY", "line %d: is given twice", name.Line)
		case !sourceName.MatchString(name.Value):
			l.problems.Add(key, "INVALID", "line %d: want a name of up to 63 of a-z, 0-9, _ and -, with a letter or digit first", name.Line)
		default:
			list[i].Name = name.Value
			l.register(key+".", reflect.ValueOf(&list[i]).Elem(), value)
			l.mapping(key+".", value)
		}
		seen[name.Value] = true
	}
	return list
}

const relayPrefix = "SPENDHOOK_RELAY_"

// relayEnvironment applies the variables SPENDHOOK_RELAY_*. It refuses unknown ones, except those that Kubernetes sets for
// Services.
func (l *loader) relayEnvironment(environ []string) {
	known := map[string]string{"URL": "url", "ADMIN_LISTEN": "admin_listen", "LOG_LEVEL": "log.level"}
	for _, pair := range environ {
		name, text, _ := strings.Cut(pair, "=")
		short, ours := strings.CutPrefix(name, relayPrefix)
		switch key := known[short]; {
		case !ours || text == "":
		case key != "":
			l.setText(key, name, text)
		case !ofService.MatchString(name):
			l.problems.Add(name, "UNKNOWN_KEY", "there is no such setting")
		}
	}
}
