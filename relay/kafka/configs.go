package kafka

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// checkPolicy refuses a dead-letter topic that loses records.
func (s *Source) checkPolicy(ctx context.Context, client *kgo.Client) error {
	topic := s.opts.DeadLetterTopic
	if strings.Contains(configs(ctx, client, "cleanup.policy", topic)[topic], "compact") {
		return fmt.Errorf("the dead-letter topic %q is compacted (cleanup.policy): of the dead records of a key it would keep only the latest one", topic)
	}
	return nil
}

// checkMaxBytes refuses a dead-letter topic in which the largest records would be written without their values.
func (s *Source) checkMaxBytes(ctx context.Context, client *kgo.Client) error {
	const setting = "max.message.bytes"
	dead := s.opts.DeadLetterTopic
	limits := configs(ctx, client, setting, append([]string{dead}, s.opts.Topics...)...)
	allowed, err := strconv.Atoi(limits[dead])
	if err != nil {
		return nil //nolint:nilerr // it is not known
	}
	var problems []error
	for _, topic := range s.opts.Topics {
		if most, err := strconv.Atoi(limits[topic]); err == nil && allowed < most+maxAdded {
			problems = append(problems, fmt.Errorf("%s of the dead-letter topic %q is %d and that of topic %q %d: set it to %d at least, since headers are added",
				setting, dead, allowed, topic, most, most+maxAdded))
		}
	}
	return errors.Join(problems...)
}

// configs returns a setting of topics. Those are left out whose settings are not known: the user may not read them, or the
// broker does not tell.
func configs(ctx context.Context, client *kgo.Client, setting string, topics ...string) map[string]string {
	request := kmsg.NewPtrDescribeConfigsRequest()
	for _, topic := range topics {
		r := kmsg.NewDescribeConfigsRequestResource()
		r.ResourceType, r.ResourceName, r.ConfigNames = kmsg.ConfigResourceTypeTopic, topic, []string{setting}
		request.Resources = append(request.Resources, r)
	}
	answer, err := request.RequestWith(ctx, client)
	if err != nil {
		return nil
	}
	values := make(map[string]string)
	for _, r := range answer.Resources {
		for _, c := range r.Configs {
			if c.Name == setting && c.Value != nil {
				values[r.ResourceName] = *c.Value
			}
		}
	}
	return values
}
