"""`forebay deploy`: put a pipeline or a fleet on Kubernetes or Ray."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forebay.cli.options import option
from forebay.cli.output import (
    Command,
    Group,
    JsonFile,
    check_json,
    errors_console,
    print_line,
    results_console,
    shows_text,
    write_json,
)
from forebay.errors import SettingError
from forebay.untrusted_text import counted, replace_controls

if TYPE_CHECKING:
    from forebay.deploy.kubernetes import Deployment, Manifest
    from forebay.deploy.kubernetes.api import Done
    from forebay.deploy.ray.config import RayFleetSpec

deploy = typer.Typer(
    cls=Group, help="Deploy a pipeline or a gateway to Kubernetes, or a fleet to Ray.", no_args_is_help=True
)


@deploy.command(cls=Command)
def kubernetes(
    pipeline: Annotated[
        Path | None,
        typer.Argument(
            help="A pipeline file (YAML); none for a gateway and its engine alone.", metavar="[PIPELINE]"
        ),
    ] = None,
    *,
    config: Annotated[
        Path | None, option("The deployment file; default: deploy.yaml next to the pipeline file.")
    ] = None,
    set: Annotated[
        list[str] | None,
        option("Override a setting of the deployment file; may be repeated.", metavar="KEY=VALUE"),
    ] = None,
    out: Annotated[Path | None, option("Write the manifests and Dockerfiles into this folder.")] = None,
    apply: Annotated[bool, option("Apply the manifests to the cluster.", "--apply")] = False,
    remove: Annotated[
        bool, option("Delete what was applied; state in its store is kept.", "--remove")
    ] = False,
    dry_run: Annotated[
        bool, option("Let the cluster check everything, without changes.", "--dry-run")
    ] = False,
    force_conflicts: Annotated[
        bool, option("Take over fields that someone else has set.", "--force-conflicts")
    ] = False,
    context: Annotated[str | None, option("Context of the kubeconfig; default: the current one.")] = None,
    namespace: Annotated[
        str | None, option("Namespace; default: the deployment file's.", "--namespace", "-n")
    ] = None,
    json: JsonFile = None,
) -> None:
    """Render the manifests of a pipeline, or of a gateway without one, and its engine, and apply them.

    Without --out, --apply, --dry-run and --remove, they are written to standard output. Manifests only refer
    to secrets and never contain them.
    """
    from forebay.deploy.kubernetes import load_deployment, render, to_yaml, warnings_of

    check_json(json)
    if apply and remove:
        raise SettingError("--apply, --remove: use only one of them")
    deployment = load_deployment(pipeline, config, set or (), namespace)
    manifests = render(deployment)
    report: dict[str, Any] = {"instance": deployment.instance, "manifests": [m.body for m in manifests]}
    report["warnings"] = list(warnings_of(deployment))
    for each in report["warnings"]:
        print_line(errors_console(), f"warning: {each}", style="yellow")
    if out is not None:
        from forebay.deploy.kubernetes.render import write_manifests

        written = write_manifests(manifests, out, deployment.settings.namespace, deployment.connectors)
        report["files"] = [str(path) for path in written]
        print_line(errors_console(), f"{len(manifests)} manifests written to {out}")
    if apply or remove or dry_run:
        report |= _on_cluster(
            deployment, manifests, remove=remove, dry_run=dry_run, force=force_conflicts, context=context
        )
    elif out is None and shows_text(json):
        typer.echo(replace_controls(to_yaml(manifests)), nl=False)
    write_json(json, report)


def _on_cluster(
    deployment: Deployment,
    manifests: Sequence[Manifest],
    *,
    remove: bool,
    dry_run: bool,
    force: bool,
    context: str | None,
) -> dict[str, Any]:
    from forebay.deploy.kubernetes.api import apply_all, open_api, refused_pods, remove_all

    console = errors_console()
    with open_api(context, deployment.settings.namespace) as api:
        if remove:
            done = _shown(remove_all(api, deployment.instance, dry_run=dry_run), dry_run=dry_run)
            if not done:
                print_line(
                    console, f"found nothing of {deployment.instance} in the namespace {api.namespace}"
                )
            return {"namespace": api.namespace, "done": done}
        done = _shown(apply_all(api, manifests, dry_run=dry_run, force=force), dry_run=dry_run)
        refused = {} if dry_run else dict(refused_pods(api, manifests))
        for name, why in refused.items():
            print_line(console, f"warning: Deployment {name} gets no pods: {why}", style="yellow")
        return {"namespace": api.namespace, "done": done, "refused_pods": refused}


def _shown(steps: Iterable[Done], *, dry_run: bool) -> list[dict[str, Any]]:
    console, done = errors_console(), []
    for each in steps:
        print_line(console, f"{each.kind} {each.name}: {each.action}{' (dry run)' if dry_run else ''}")
        for warning in each.warnings:
            print_line(console, f"warning: {each.kind} {each.name}: {warning}", style="yellow")
        done.append(asdict(each))
    return done


@deploy.command(cls=Command)
def ray(
    fleet: Annotated[Path, typer.Argument(help="A fleet file (YAML).", metavar="FLEET")],
    *,
    set: Annotated[
        list[str] | None,
        option("Override a setting of the fleet file; may be repeated.", metavar="KEY=VALUE"),
    ] = None,
    address: Annotated[str | None, option("Address of the cluster's dashboard; default: the file's.")] = None,
    out: Annotated[Path | None, option("Write serve.yaml into this folder.")] = None,
    apply: Annotated[bool, option("Start or change the fleet, and wait until it runs.", "--apply")] = False,
    replicas: Annotated[
        int | None, option("Scale a running fleet to this many replicas.", min=0, max=1000)
    ] = None,
    status: Annotated[bool, option("Show the fleet.", "--status")] = False,
    remove: Annotated[
        bool, option("Remove the fleet after it has finished its requests.", "--remove")
    ] = False,
    json: JsonFile = None,
) -> None:
    """Deploy a fleet to a Ray cluster: each replica of Ray Serve owns one engine, which is called directly.

    Without --out, --apply, --replicas, --status and --remove, the config of Ray Serve is written to standard
    output. Other applications on the cluster are not changed.
    """
    import asyncio

    from forebay.deploy.ray.config import load_fleet, whole_config
    from forebay.yaml_document import to_yaml

    check_json(json)
    actions = {"--apply": apply, "--replicas": replicas is not None, "--status": status, "--remove": remove}
    given = [name for name, wanted in actions.items() if wanted]
    if len(given) > 1:
        raise SettingError(f"{', '.join(actions)}: use only one of them, found {' and '.join(given)}")
    spec = load_fleet(fleet, set or (), address)
    config = whole_config(spec)
    report: dict[str, Any] = {"address": spec.address, "name": spec.name, "config": config}
    if out is not None:
        from forebay.deploy.ray.config import write_config

        path = write_config(config, out)
        report["files"] = [str(path)]
        print_line(errors_console(), f"the config of Ray Serve was written to {path}")
    if given:
        report |= asyncio.run(_on_ray(spec, given[0], replicas, shown=shows_text(json)))
    elif out is None and shows_text(json):
        typer.echo(replace_controls(to_yaml(config)), nl=False)
    write_json(json, report)


async def _on_ray(spec: RayFleetSpec, action: str, replicas: int | None, *, shown: bool) -> dict[str, Any]:
    import asyncio

    from forebay.clients.ray.rest import ServeRest
    from forebay.deploy.ray.fleet import apply_fleet, as_document, fleet_status, remove_fleet, scale_fleet
    from forebay.deploy.ray.local_cluster import start_local_cluster, until_it_answers

    show = partial(print_line, errors_console())
    unnamed = action == "--apply" and "address" not in spec.model_fields_set
    started = unnamed and await asyncio.to_thread(start_local_cluster, spec.address, show)
    async with ServeRest(spec.address) as rest:
        if started:
            await until_it_answers(rest)
        if action == "--remove":
            removed = await remove_fleet(rest, spec, show)
            show(f"{spec.name}: removed" if removed else f"{spec.name}: not found at {spec.address}")
            return {"removed": removed}
        if action == "--replicas" and replicas is not None:
            await scale_fleet(rest, spec, replicas)
            show(f"{spec.name}: {counted(replicas, 'replica is', 'replicas are')} requested")
            return {"wanted": replicas}
        if action == "--apply":
            found: dict[str, Any] | None = as_document(await apply_fleet(rest, spec, show))
        else:
            found = await fleet_status(rest, spec)
    if shown:
        _show_fleet(spec, found)
    return {"fleet": found}


def _show_fleet(spec: RayFleetSpec, found: dict[str, Any] | None) -> None:
    console = results_console()
    if found is None:
        print_line(console, f"{spec.name}: not found at {spec.address}")
        return
    states = ", ".join(f"{many} {state.lower()}" for state, many in found["replicas"].items()) or "none"
    wanted = f"{counted(found['wanted'], 'replica')} wanted"
    print_line(console, f"{spec.name}: {found['status'].lower()}; {wanted}: {states}")
    for line in (found["message"], *found["engines"]):
        if line:
            print_line(console, f"  {line}")
