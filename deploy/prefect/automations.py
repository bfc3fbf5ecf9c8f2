"""Load automations.yaml into the Prefect server of PREFECT_API_URL; automations of the same names are replaced.

DPDIST_WEBHOOK=https://… python deploy/prefect/automations.py [FILE]
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import yaml
from prefect import get_client
from prefect.blocks.webhook import Webhook
from prefect.events.schemas.automations import AutomationCore
from prefect.exceptions import ObjectNotFound

FILE = Path(__file__).with_name("automations.yaml")
URL = "DPDIST_WEBHOOK"


def load(file: Path, url: str | None) -> list[str]:
    """Load the automations of a file; returns the names of those that were loaded."""
    loaded = []
    with get_client(sync_client=True) as client:
        for found in yaml.safe_load(file.read_text()):
            actions = [with_ids(action, client, url) for action in found["actions"]]
            if None in actions:
                print(f"left out, as {URL} is not set: {found['name']}", file=sys.stderr)
                continue
            automation = AutomationCore.model_validate({**found, "actions": actions})
            for old in client.read_automations_by_name(automation.name):
                client.delete_automation(old.id)
            client.create_automation(automation)
            loaded.append(automation.name)
    return loaded


def with_ids(action: dict[str, Any], client: Any, url: str | None) -> dict[str, Any] | None:
    """An action with ids in the place of names; None if it calls a webhook that nobody named."""
    action = dict(action)
    if name := action.pop("deployment", None):
        try:
            return {**action, "deployment_id": client.read_deployment_by_name(name).id}
        except ObjectNotFound:
            sys.exit(f"there is no deployment {name}: prefect --no-prompt deploy --name {name.split('/')[1]}")
    if name := action.pop("webhook", None):
        if url is None:
            return None
        return {**action, "block_document_id": Webhook(url=url).save(name, overwrite=True, _sync=True)}
    return action


if __name__ == "__main__":
    for name in load(Path(sys.argv[1]) if sys.argv[1:] else FILE, os.environ.get(URL)):
        print(name)
