"""Put a dialect in the place of the original in every Python process of a foreign suite."""

import os
import sys

if os.environ.get("STOKER_FOREIGN"):
    sys.path.append(os.environ["STOKER_FOREIGN_HOME"])
    from systems import install

    install(os.environ["STOKER_FOREIGN"])
