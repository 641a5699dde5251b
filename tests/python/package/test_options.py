"""Keywords of the functions: each is listed once, shown by help(), checked, and an option of the command."""

import inspect
import re

import archfs
from archfs import _options
from archfs._reader import Reader
from stage import Stage, run


class OptionsTest(Stage):
    def test_help_shows_the_keywords(self):
        for function, options in ((archfs.mount, _options.MountOptions), (archfs.ls, _options.ContentOptions)):
            parameters = inspect.signature(function).parameters
            self.assertLessEqual(set(options.__annotations__), set(parameters))
            self.assertFalse(any(one.kind is one.VAR_KEYWORD for one in parameters.values()))

    def test_an_unknown_keyword_is_a_type_error(self):
        for call in (archfs.mount, archfs.mount_until_exit, archfs.ls, archfs.info, archfs.verify):
            with self.assertRaisesRegex(TypeError, "unexpected keyword argument 'no_such'"):
                call(self.image, no_such=1)

    def test_every_keyword_is_an_option_of_the_command(self):
        for command, options in (
            ("mount", _options.MountOptions),
            ("ls", _options.ContentOptions),
            ("info", _options.ContentOptions),
            ("verify", _options.ContentOptions),
            ("extract", _options.ContentOptions),
            ("cat", _options.ContentOptions),
        ):
            known = set(re.findall(r"--[a-z-]+", run(command, "--help")))
            for word in _options.words({name: True for name in options.__annotations__}):
                self.assertIn(word, known, command)

    def test_no_message_has_a_secret_of_a_url(self):
        for url in ("htps://me:SECRET@host/a", "HTTPS://me:SECRET@/a?sig=SECRET", "s3://KEY:SECRET@bucket/a"):
            for call in (archfs.mount, archfs.mount_until_exit, archfs.ls, archfs.info, lambda url: Reader([url], {})):
                with self.assertRaises(archfs.Error) as raised:
                    call(url)
                self.assertNotIn("SECRET", f"{raised.exception} {raised.exception!r}", url)
            self.assertTrue(_options.shown(url).startswith(url.partition(":")[0] + "://...@"))
            self.assertNotIn("SECRET", _options.shown(url))
        for path in ("https://host/a.tar", "a@b:c?d", "/a/http://b@c"):
            self.assertEqual(_options.shown(path), path)

    def test_old_names_work(self):
        self.assertEqual(archfs.ls(self.image, recursive=True), archfs.ls(self.image, nested=True))
        with archfs.mount(self.image, at=self.mount_point, recursive=False, cache=None) as root:
            self.assert_readable(root)
