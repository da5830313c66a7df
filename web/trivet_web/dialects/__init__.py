"""The APIs of others, translated to the requests and answers of ours: nothing is computed here.

A field that would change an answer is carried out or refused by name; failures have each dialect's own form.
"""
