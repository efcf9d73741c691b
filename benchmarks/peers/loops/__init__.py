"""One file per peer. Each has the same functions, if the peer has the feature.

    fit(work)               one pass over the data, and nothing else
    defaults(work)          the same with the default settings of the peer
    accuracy(work)          returns the accuracy over the training batches
    callbacks(work, count)  with that many callbacks that do nothing
    logging(work)           with the loss of each step written to a file
    checkpoints(work, n)    saves every n steps, and resumes from the newest save
    evaluate(work)          the mean loss over the data
    predict(work)           the outputs of the model for the data
    job(work)               trains, validates after each epoch, returns the held-out accuracy

``ABSENT`` gives the reason why a function, or resuming from its saves ("resume"), is missing;
``NO_JOB`` why a job is.
"""
