"""Home Assistant with its integrations Ollama and OpenAI: texts, and a switch that a tool turns on.

The program needs a newer Python than Debian 12 has, so it runs in a root of Debian 13. The script
fills in its onboarding and its forms as its pages do.
"""

import pathlib
import shutil
import sys

HERE = pathlib.Path(__file__).resolve().parent
TESTS = HERE.parents[1]
sys.path[:0] = [str(HERE.parent / "agents"), str(TESTS / "packages")]

import debian_root  # noqa: E402
import harness  # noqa: E402
from packages import Unavailable, installed, key_of, run_quietly  # noqa: E402
from programs import Program, free_port  # noqa: E402
import scripted_model  # noqa: E402
import scripts  # noqa: E402
import support  # noqa: E402

SYSTEM_PACKAGES = {"ca-certificates", "g++", "libturbojpeg0", "python3-dev", "python3-venv"}
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
ENVIRONMENT = {"PATH": "/ha/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8",
               "PIP_CERT": CERTIFICATES, "SSL_CERT_FILE": CERTIFICATES}
# The root has its own /proc, which ends with the program.
INSIDE = 'mount -t proc proc "$1/proc" && exec chroot "$@"'


def inside(root, *command):
    return ["unshare", "--mount", "bash", "-c", INSIDE, "bash", str(root), *map(str, command)]


def make_root(cache):
    if reason := debian_root.why_not():
        raise Unavailable(reason)
    requirements = HERE / "home_assistant.txt"

    def install(folder):
        root = folder / "root"
        debian_root.unpack(root, "trixie", SYSTEM_PACKAGES)
        # The registry is reached as from this machine.
        for file in (CERTIFICATES, "/etc/resolv.conf", "/etc/hosts"):
            shutil.copy(file, root / file[1:])
        shutil.copy(requirements, root / "requirements.txt")
        constraints = "homeassistant/package_constraints.txt"
        for command in (["python3", "-m", "venv", "/ha"],
                        ["/ha/bin/pip", "install", "--quiet", "--no-deps",
                         requirements.read_text().split()[0]],
                        ["sh", "-c", "/ha/bin/pip install --quiet -r /requirements.txt -c "
                         f"/ha/lib/python3*/site-packages/{constraints}"]):
            run_quietly(inside(root, *command), 900, env=ENVIRONMENT)

    try:
        return installed(cache, key_of(requirements.read_bytes()), install) / "root"
    except AssertionError as fault:  # debootstrap
        raise Unavailable(str(fault).splitlines()[0]) from fault


def onboard(api):
    client = {"client_id": f"{api.url}/"}
    user = api.post("/api/onboarding/users", dict(client, name="a", username="a", password="a",
                                                  language="en"))
    api.token = api.form("/auth/token", dict(client, grant_type="authorization_code",
                                             code=user["auth_code"]))["access_token"]
    for step in ("core_config", "analytics", "integration"):
        api.post(f"/api/onboarding/{step}", dict(client, redirect_uri=f"{api.url}/"))


def fill_in(api, path, handler, answers):
    """Opens a form and answers it."""
    flow = api.post(path, {"handler": handler})
    assert flow["type"] == "form", flow
    made = api.post(f"{path}/{flow['flow_id']}", answers)
    assert made["type"] == "create_entry", made
    return made


def ask(api, agent, text):
    answer = api.post("/api/conversation/process",
                      {"text": text, "agent_id": agent, "language": "en"})
    return answer["response"]["speech"]["plain"]["speech"]


def check_agent(api, agent):
    assert ask(api, agent, "Hello") == scripts.PLAIN
    api.post("/api/services/input_boolean/turn_off", {"entity_id": "input_boolean.lamp"})
    answer = ask(api, agent, "Turn on the lamp. #lamp")
    assert answer == "The lamp is on.", answer
    assert api.get("/api/states/switch.lamp")["state"] == "on"


def check_home(api, url):
    onboard(api)
    flows = "/api/config/config_entries/flow"
    ollama = fill_in(api, flows, "ollama", {"url": url})
    fill_in(api, "/api/config/config_entries/subentries/flow",
            [ollama["result"]["entry_id"], "conversation"],
            {"name": "Ollama", "model": "scripted:latest", "llm_hass_api": ["assist"],
             "num_ctx": 8192, "max_history": 20, "keep_alive": -1, "think": False})
    fill_in(api, flows, "openai_conversation", {"api_key": "none"})
    agents = [state["entity_id"] for state in api.get("/api/states")
              if state["entity_id"].startswith("conversation.")]
    for agent in ("conversation.ollama", "conversation.openai_conversation"):
        assert agent in agents, agents
        check_agent(api, agent)


def run_home_assistant(context):
    support.BUILD = pathlib.Path(harness.BINARY).parent
    root = make_root(context.cache / "home_assistant")
    scripted_model.write(context.scratch / "scripted", harness.BINARY, scripts.SCRIPTS)
    # The integration OpenAI names models of OpenAI.
    server = harness.Server(context.scratch, "--model", str(context.scratch / "scripted"),
                            "--any-model-name", "--memory", "1G")
    url = "http://{}:{}".format(*server.address)
    port = free_port()
    folder = root / "config"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "configuration.yaml").write_text(
        (HERE / "home_assistant.yaml").read_text().replace("PORT", str(port)))
    # The integration OpenAI has no form for the address, and its library reads this variable.
    environment = dict(ENVIRONMENT, OPENAI_BASE_URL=f"{url}/v1")
    try:
        with Program(inside(root, "/ha/bin/hass", "--config", "/config"), port, "/api/onboarding",
                     context.scratch / "hass.log", environment) as api:
            check_home(api, url)
    except AssertionError:
        print(server.log_path.read_text()[-3000:])
        raise
    finally:
        assert server.stop() == 0
