//go:build !state_change

package main

import (
	"context"
	"fmt"

	"github.com/containerd/nri/pkg/adaptation"
	validator "github.com/containerd/nri/plugins/default-validator/builtin"
	"google.golang.org/protobuf/proto"
)

// validated has the library refuse a container whose pod requires a plugin that is not there.
func validated() []adaptation.Option {
	return []adaptation.Option{adaptation.WithDefaultValidator(&validator.DefaultValidatorConfig{Enable: true})}
}

// tell hands an event without an answer to the plugins: from NRI 0.12 on each has a call of its own.
func tell(ctx context.Context, runtime *adaptation.Adaptation, event *adaptation.StateChangeEvent) error {
	pod, container := event.Pod, event.Container
	switch event.Event {
	case adaptation.Event_RUN_POD_SANDBOX:
		return runtime.RunPodSandbox(ctx, &adaptation.RunPodSandboxRequest{Pod: pod})
	case adaptation.Event_POST_UPDATE_POD_SANDBOX:
		return runtime.PostUpdatePodSandbox(ctx, &adaptation.PostUpdatePodSandboxRequest{Pod: pod})
	case adaptation.Event_STOP_POD_SANDBOX:
		return runtime.StopPodSandbox(ctx, &adaptation.StopPodSandboxRequest{Pod: pod})
	case adaptation.Event_REMOVE_POD_SANDBOX:
		return runtime.RemovePodSandbox(ctx, &adaptation.RemovePodSandboxRequest{Pod: pod})
	case adaptation.Event_POST_CREATE_CONTAINER:
		return runtime.PostCreateContainer(ctx, &adaptation.PostCreateContainerRequest{Pod: pod, Container: container})
	case adaptation.Event_START_CONTAINER:
		return runtime.StartContainer(ctx, &adaptation.StartContainerRequest{Pod: pod, Container: container})
	case adaptation.Event_POST_START_CONTAINER:
		return runtime.PostStartContainer(ctx, &adaptation.PostStartContainerRequest{Pod: pod, Container: container})
	case adaptation.Event_POST_UPDATE_CONTAINER:
		return runtime.PostUpdateContainer(ctx, &adaptation.PostUpdateContainerRequest{Pod: pod, Container: container})
	case adaptation.Event_REMOVE_CONTAINER:
		return runtime.RemoveContainer(ctx, &adaptation.RemoveContainerRequest{Pod: pod, Container: container})
	}
	return fmt.Errorf("no event %s", event.Event)
}

// updateSandbox tells the plugins that a pod is to have other resources.
func updateSandbox(ctx context.Context, runtime *adaptation.Adaptation, body []byte) ([]byte, error) {
	request := &adaptation.UpdatePodSandboxRequest{}
	if err := proto.Unmarshal(body, request); err != nil {
		return nil, err
	}
	answer, err := runtime.UpdatePodSandbox(ctx, request)
	return marshal(answer, err)
}
