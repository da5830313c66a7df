// Lets a password be seen, as at the login.

import "../login/page.js";
